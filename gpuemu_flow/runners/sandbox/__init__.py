"""The sandbox of an op, which the kernel (Linux) enforces on its processes."""
