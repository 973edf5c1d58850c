"""Kernel artifacts: PTX, cubins, their metrics and lint rules."""
