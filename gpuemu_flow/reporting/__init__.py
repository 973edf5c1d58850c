"""Build the documents that reports show, from runs, history, baselines and submissions."""
