"""Semantics of PTX instructions, as functions over numpy arrays of lanes."""
