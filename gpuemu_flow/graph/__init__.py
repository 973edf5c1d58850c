"""From a checked configuration to the task graph, and the snapshot that keeps it."""
