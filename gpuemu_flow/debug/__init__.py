"""``gpuemu-flow debug``: recorded failures looked at by commands, line by line."""
