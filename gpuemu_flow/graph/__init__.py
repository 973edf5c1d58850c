"""Compile a validated configuration to the task graph, and store the graph in a snapshot."""
