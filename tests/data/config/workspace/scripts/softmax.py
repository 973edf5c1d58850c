"""A script that the configuration tests name; it is never run."""
