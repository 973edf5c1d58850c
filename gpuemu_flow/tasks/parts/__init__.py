"""Functions that several stages use, such as running programs and compilers."""
