"""The reference: running sums that begin anew with each segment."""

import numpy as np


def reference(x, starts):
    out = np.zeros_like(x)
    for a, b in zip(starts[:-1], starts[1:], strict=True):
        out[a:b] = np.cumsum(x[a:b])
    return out
