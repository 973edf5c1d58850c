"""CUDA as it is shipped: programs and extensions whose kernels the emulator runs."""
