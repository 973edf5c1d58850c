"""gpuemu-flow: know that a GPU kernel is right, without a GPU."""

__version__ = "0.1.0"
