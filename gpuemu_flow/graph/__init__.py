"""Compile a checked configuration to the task graph, and store the graph in a snapshot."""
