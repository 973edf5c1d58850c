"""The sum and the largest element of a matrix."""

import numpy as np


def right_rows(x):
    with np.errstate(all="ignore"):
        return x.sum(axis=1, dtype=np.float32).sum(dtype=np.float32), x.max()


def right_columns(x):
    with np.errstate(all="ignore"):
        return x.sum(axis=0, dtype=np.float32).sum(dtype=np.float32), x.max(axis=1).max()


def bug_nan_is_left_out(x):
    with np.errstate(all="ignore"):
        return np.nansum(x, dtype=np.float32), x.max()


def bug_compensation_makes_nan_of_infinity(x):
    """Kahan's sum, whose correction is Inf - Inf."""
    with np.errstate(all="ignore"):
        total, lost = np.float32(0), np.float32(0)
        for part in x.sum(axis=1, dtype=np.float32):
            term = part - lost
            new = total + term
            total, lost = new, (new - total) - term
        return total, x.max()
