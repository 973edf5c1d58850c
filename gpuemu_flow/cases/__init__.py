"""Cases: how they are planned from a seed and an op schema, and turned into input tensors."""
