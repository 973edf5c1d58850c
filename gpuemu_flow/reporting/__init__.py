"""Build reports, as data, from runs, the history of runs, baselines and submissions."""
