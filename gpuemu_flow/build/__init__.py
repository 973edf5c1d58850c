"""What is stale, and in which order it runs; the only user of doit."""
