"""The sandbox of an op, which the Linux kernel enforces on the op's processes."""
