"""The build engine: current and stale tasks, and their execution."""
