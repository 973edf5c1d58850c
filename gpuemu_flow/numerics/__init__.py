"""Numerics without I/O: random draws, dtypes, layouts, comparison, tolerances and diagnosis."""
