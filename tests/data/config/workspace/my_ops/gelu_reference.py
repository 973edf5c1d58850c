"""A module that the configuration tests name; it is never run."""
