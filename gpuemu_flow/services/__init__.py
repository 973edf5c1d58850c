"""What people start besides commands: daemon, editors, imports, watching, clusters, pytest."""
