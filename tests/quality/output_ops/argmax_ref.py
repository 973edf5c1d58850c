"""The reference: the first place of the largest."""

import numpy as np


def reference(x):
    return np.argmax(x, axis=1)
