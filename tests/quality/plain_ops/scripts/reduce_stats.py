"""Sum, largest and number of positive elements, and which rows have one."""

import numpy as np

BLOCK = 512


def reduce_stats(x):
    flat = x.reshape(-1)
    total = np.float32(0)
    largest = np.float32(-np.inf)
    count = np.int64(0)
    with np.errstate(all="ignore"):
        for k in range(0, flat.size, BLOCK):
            tile = flat[k : k + BLOCK].astype(np.float32)
            total += tile.sum(dtype=np.float32)
            largest = np.maximum(largest, tile.max())
            count += np.count_nonzero(tile > 0)
    return {
        "total": np.array(total, x.dtype),
        "largest": np.array(largest, x.dtype),
        "count": np.array(count),
        "row_any": (x > 0).any(1),
    }
