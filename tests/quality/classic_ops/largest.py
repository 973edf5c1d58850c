"""A vector's largest and smallest element, and the vector scaled to at most 1."""

import numpy as np


def _all(x, high, low, scale=1):
    size = np.abs(x).max()
    with np.errstate(all="ignore"):
        scaled = x / (size if size != 0 else np.float32(scale))
    return np.maximum(x.max(), np.float32(high)), np.minimum(x.min(), np.float32(low)), scaled


def right_library(x):
    return _all(x, -np.inf, np.inf)


def right_halves(x):
    half = x.size // 2 or x.size
    first, rest = _all(x[:half], -np.inf, np.inf), x[half:]
    high = np.maximum(first[0], rest.max(initial=np.float32(-np.inf)))
    low = np.minimum(first[1], rest.min(initial=np.float32(np.inf)))
    return high, low, _all(x, -np.inf, np.inf)[2]


def bug_high_starts_at_minus_1e30(x):
    return _all(x, -1e30, np.inf)


def bug_high_starts_at_the_lowest_number(x):
    return _all(x, -3.4028235e38, np.inf)


def bug_low_starts_at_0(x):
    return _all(x, -np.inf, 0)


def bug_zeros_are_divided_by_0(x):
    return _all(x, -np.inf, np.inf, scale=0)
