"""The reference: a squared distance; 0 where a label is ignored."""

import numpy as np


def reference(x, labels):
    return np.where(labels != 0, (x - labels) ** 2, 0)
