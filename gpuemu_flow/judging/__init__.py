"""The only evaluator of a case: inputs, op, reference, comparison, checks, verdict."""
