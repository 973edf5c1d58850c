"""The reference: attention in which a query sees the keys up to its own place."""

import numpy as np


def reference(q, k, v):
    scores = np.where(np.tri(len(q), dtype=bool), q @ k.T / np.sqrt(q.shape[1]), -np.inf)
    with np.errstate(all="ignore"):
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True) @ v
