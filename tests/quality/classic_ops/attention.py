"""Attention in which a query sees the keys up to its own place."""

import numpy as np


def _masked_by(q, k, v, lowest):
    scale = np.float32(q.shape[1] ** -0.5)
    with np.errstate(all="ignore"):
        scores = np.where(np.tri(len(q), dtype=bool), q @ k.T * scale, np.float32(lowest))
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True) @ v


def right_infinity(q, k, v):
    return _masked_by(q, k, v, -np.inf)


def bug_masked_by_minus_10000(q, k, v):
    return _masked_by(q, k, v, -1e4)
