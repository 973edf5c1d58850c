"""Many cases of an op: fuzzing, recorded failures, minimising, causes, measures."""
