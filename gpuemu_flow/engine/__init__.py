"""The build tool: task graph, current and stale tasks, and their execution."""
