"""Control for scripts/causal_attention.py: the whole masked matrix, from the last key."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


@np.errstate(all="ignore")
def split_keys(q: NDArray, k: NDArray, v: NDArray) -> NDArray:
    """Causal attention [B, H, S, D]."""
    back = slice(None, None, -1)
    keys, values = k[:, :, back].astype(np.float32), v[:, :, back].astype(np.float32)
    scaled = q.astype(np.float32) * np.float32(1 / math.sqrt(q.shape[3]))
    scores = scaled @ keys.swapaxes(2, 3)
    index = np.arange(q.shape[2])
    scores = np.where(index[back] <= index[:, None], scores, -np.inf)
    e = np.exp(scores - scores.max(axis=3, keepdims=True))
    return (e @ values / e.sum(axis=3, keepdims=True)).astype(q.dtype)
