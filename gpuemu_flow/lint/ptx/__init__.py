"""Read PTX text into modules, functions, statements and control-flow graphs."""
