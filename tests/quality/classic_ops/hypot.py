"""Lengths of vectors in the plane."""

import numpy as np


def right_library(a, b):
    return np.hypot(a, b)


def right_scaled(a, b):
    with np.errstate(all="ignore"):
        large, small = np.maximum(abs(a), abs(b)), np.minimum(abs(a), abs(b))
        share = np.where(large > 0, small / large, np.float32(0))
        length = large * np.sqrt(np.float32(1) + share * share)
    return np.where(np.isinf(a) | np.isinf(b), np.float32(np.inf), length)


def bug_squares_overflow(a, b):
    with np.errstate(all="ignore"):
        return np.sqrt(a * a + b * b)
