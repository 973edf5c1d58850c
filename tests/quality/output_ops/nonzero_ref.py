"""The reference: row by row."""

import numpy as np


def reference(x):
    return np.argwhere(x != 0)
