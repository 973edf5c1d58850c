"""The reference: means of what a mask lets through, 0 of nothing."""

import numpy as np


def reference(x, mask):
    return (x * mask).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)
