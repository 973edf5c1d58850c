"""Adds rows to the rows of a base that an index names."""

import numpy as np


def scatter_add(base, index, src):
    out = base.astype(np.float32)
    for e in range(len(index)):
        out[index[e]] += src[e].astype(np.float32)
    return out.astype(base.dtype)
