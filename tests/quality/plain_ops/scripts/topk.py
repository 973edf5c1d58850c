"""The k largest of a row, NaN first, equal ones by index."""

import numpy as np


def topk(x, k=5):
    m, n = x.shape
    values = np.empty((m, k), x.dtype)
    indices = np.empty((m, k), np.int64)
    for i in range(m):
        row = x[i].astype(np.float32)
        key = np.where(np.isnan(row), np.inf, row)
        nan = np.isnan(row)
        taken = np.zeros(n, bool)
        for j in range(k):
            best = -1
            for c in range(n):
                if taken[c]:
                    continue
                if best < 0 or key[c] > key[best] or (nan[c] and not nan[best]):
                    best = c
            taken[best] = True
            values[i, j] = x[i, best]
            indices[i, j] = best
    return {"values": values, "indices": indices}
