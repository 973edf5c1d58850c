"""Running compiled kernels on the CPU: PTX in, the outputs and what the checks found out."""
