"""The daemon, which answers wire protocol v1 for one workspace and keeps references loaded."""
