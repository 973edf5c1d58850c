"""The command line: one file per command, which leaves the work to other packages."""
