"""Data that every room uses as it is: cases, verdicts, errors, values."""
