"""The reference: attention of one query a sequence over the pages of its keys; 0 over none."""

import numpy as np


def reference(q, k, v, pages, lengths):
    out = np.zeros_like(q)
    for b, n in enumerate(lengths):
        if n:
            keys, values = (t[pages[b]].reshape(-1, t.shape[2])[:n] for t in (k, v))
            scores = keys @ q[b] / np.sqrt(q.shape[1])
            powers = np.exp(scores - scores.max())
            out[b] = powers / powers.sum() @ values
    return out
