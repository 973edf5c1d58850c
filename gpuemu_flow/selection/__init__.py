"""Find the tasks that words, sets, a git change or a shard select."""
