"""The wall round an op: what the kernel (Linux) keeps its processes from."""
