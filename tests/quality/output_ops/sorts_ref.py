"""The reference: one of the orders that sort."""

import numpy as np


def reference(x):
    return np.argsort(x, kind="stable")
