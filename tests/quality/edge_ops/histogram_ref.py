"""The reference: elements in equal bins from 0 to 1, which is in the last one."""

import numpy as np


def reference(x, bins):
    return np.histogram(x, bins, (0, 1))[0].astype(np.int32)
