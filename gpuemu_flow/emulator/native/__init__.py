"""The compiled back end: it writes a kernel as C, compiles the C, and loads the library."""
