"""The compiled back end: a kernel as C, built by the system's compiler, loaded by ctypes."""
