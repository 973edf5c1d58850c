"""Softmax over the columns that are not masked; 0 where all are."""

import numpy as np

BLOCK = 64


def masked_fill_softmax(x, mask):
    b, s, t = x.shape
    out = np.empty(x.shape, x.dtype)
    with np.errstate(all="ignore"):
        for i in range(b):
            dead = mask[i, 0]
            for j in range(s):
                m = np.float32(-np.inf)
                total = np.float32(0)
                for k in range(0, t, BLOCK):
                    tile = x[i, j, k : k + BLOCK].astype(np.float32)
                    tile = np.where(dead[k : k + BLOCK], -np.inf, tile)
                    new = np.maximum(m, tile.max())
                    shift = new if new != -np.inf else np.float32(0)
                    total = total * np.exp(m - shift) + np.exp(tile - shift).sum(dtype=np.float32)
                    m = new
                shift = m if m != -np.inf else np.float32(0)
                row = np.where(dead, -np.inf, x[i, j]).astype(np.float32)
                p = np.exp(row - shift)
                out[i, j] = 0 if total == 0 else p / total
    return out
