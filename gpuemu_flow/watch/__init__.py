"""Watch a workspace's files, and wait until one is saved."""
