"""The daemon: answers wire protocol v1 for one workspace, its references kept warm."""
