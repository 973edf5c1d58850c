"""The reference: the softmax of a vector."""

import numpy as np


def reference(x):
    with np.errstate(all="ignore"):
        weights = np.exp(x - x.max())
        return weights / weights.sum()
