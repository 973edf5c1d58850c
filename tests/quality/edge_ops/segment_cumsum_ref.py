"""The reference: running sums that begin anew with each segment."""

import itertools

import numpy as np


def reference(x, starts):
    out = np.zeros_like(x)
    for a, b in itertools.pairwise(starts):
        out[a:b] = np.cumsum(x[a:b])
    return out
