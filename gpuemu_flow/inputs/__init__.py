"""Inputs that results depend on: files, modules, packages, variables, and their present state."""
