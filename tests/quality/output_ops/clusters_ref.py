"""The reference: numbered by value."""

import numpy as np


def reference(x):
    return np.unique(x, return_inverse=True)[1].reshape(x.shape)
