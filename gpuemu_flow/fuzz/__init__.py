"""Run an op on many cases: fuzzing, recorded failures, minimising, causes, measures."""
