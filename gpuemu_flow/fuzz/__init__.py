"""Run an op on many cases: fuzz it, record and shrink failures, find causes, measure its check."""
