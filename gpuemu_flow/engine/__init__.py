"""The build engine: it finds stale tasks and executes them."""
