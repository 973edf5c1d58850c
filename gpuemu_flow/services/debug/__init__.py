"""``gpuemu-flow debug``: an interactive debugger for recorded failures."""
