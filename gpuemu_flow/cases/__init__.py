"""From a seed and an op schema to cases, and from a case to input tensors."""
