"""The sum of a narrow and a wide tensor, in the wide dtype."""

import numpy as np


def right_cast(x, y):
    return x.astype(np.float32) + y


def right_out(x, y):
    out = np.empty(y.shape, np.float32)
    np.add(x.astype(np.float32), y, out=out)
    return out


def right_float64(x, y):
    return (x.astype(np.float64) + y).astype(np.float32)


def bug_narrow(x, y):
    return (x.astype(np.float32) + y).astype(x.dtype)


def bug_rounded_on_the_way(x, y):
    return (x + y.astype(x.dtype)).astype(np.float32)


def bug_difference(x, y):
    return x.astype(np.float32) - y


def bug_last_left(x, y):
    out = x.astype(np.float32)
    out[:-1] += y[:-1]
    return out


def bug_double(x, y):
    return x.astype(np.float64) + y
