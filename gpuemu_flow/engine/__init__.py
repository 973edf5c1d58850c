"""From a configuration to a task graph, and from what changed to what runs."""
