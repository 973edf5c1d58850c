"""The only code that evaluates a case: inputs, op, reference, comparison, checks and verdict."""
