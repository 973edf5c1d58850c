"""Find the tasks to run: by words, sets such as ``@changed``, a git commit, or a shard."""
