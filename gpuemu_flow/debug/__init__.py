"""``gpuemu-flow debug``: examine recorded failures with commands, line by line."""
