"""Code that runs problems: adapters are copied into workspaces, probes run during an import."""
