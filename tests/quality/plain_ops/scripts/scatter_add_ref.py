"""The reference of scatter_add: the plain formula."""

import numpy as np


def scatter_add(base, index, src):
    out = base.astype(np.float64)
    np.add.at(out, index, src)
    return out
