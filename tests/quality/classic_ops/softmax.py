"""The softmax of a vector."""

import numpy as np


def _from(x, first):
    with np.errstate(all="ignore"):
        weights = np.exp(x - np.maximum(x.max(), np.float32(first)))
        return weights / weights.sum(dtype=np.float32)


def right_one_pass(x):
    return _from(x, -np.inf)


def right_reciprocal(x):
    with np.errstate(all="ignore"):
        weights = np.exp(x - x.max())
        return weights * (np.float32(1) / weights.sum(dtype=np.float32))


def bug_largest_starts_at_0(x):
    return _from(x, 0)


def bug_largest_starts_at_the_smallest_normal(x):
    return _from(x, 1.1754944e-38)


def bug_largest_starts_at_minus_10000(x):
    return _from(x, -1e4)
