"""Write the files of ``gpuemu-flow init``: a workspace that passes at once, or nothing."""
