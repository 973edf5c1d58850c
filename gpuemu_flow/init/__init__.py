"""Write the files of ``gpuemu-flow init``: all files of a workspace that passes, or none."""
