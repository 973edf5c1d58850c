"""The reference: the four largest of each row, largest first."""

import numpy as np


def reference(x):
    at = np.argsort(-x, axis=1, kind="stable")[:, :4]
    return np.take_along_axis(x, at, 1), at
