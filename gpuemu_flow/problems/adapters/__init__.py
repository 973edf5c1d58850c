"""Code that runs in imported workspaces: adapters are copied there, probes run once."""
