"""Write the files of ``gpuemu-flow init``, all or none; the new workspace passes its checks."""
