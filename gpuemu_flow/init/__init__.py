"""Files that ``gpuemu-flow init`` writes: a workspace that passes at once, whole or not at all."""
