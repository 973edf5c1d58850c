"""Cases: planned from a seed and an op schema, and made into input tensors."""
