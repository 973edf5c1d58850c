"""The reference: attention of each sequence of a packed batch by itself."""

import itertools

import numpy as np


def reference(q, k, v, ends, causal):
    out = np.zeros_like(v)
    for a, b in itertools.pairwise(ends):
        if a == b:
            continue
        scores = q[a:b] @ k[a:b].T / np.sqrt(q.shape[1])
        if causal:
            scores = np.where(np.tri(b - a, dtype=bool), scores, -np.inf)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[a:b] = powers / powers.sum(axis=1, keepdims=True) @ v[a:b]
    return out
