"""JSON Schemas of the configuration and of what the commands print."""
