"""Watch a workspace's files, and wait until a file is saved."""
