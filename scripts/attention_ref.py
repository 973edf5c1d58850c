"""Attention with the whole score matrix."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


@np.errstate(all="ignore")
def attention(q: NDArray, k: NDArray, v: NDArray) -> tuple[NDArray, NDArray]:
    """Return ``softmax(q k^T / sqrt(D)) v`` [B, H, S, D], and the scores' log-sum-exp [B, H, S]."""
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) / np.sqrt(q.shape[3])
    maximum = scores.max(axis=3, keepdims=True)
    shift = np.where(np.isneginf(maximum), 0, maximum)
    e = np.exp(scores - shift)
    total = e.sum(axis=3, keepdims=True)
    out = e @ v.astype(np.float64) / total
    lse = (shift + np.log(total))[..., 0]
    return out.astype(q.dtype), lse.astype(q.dtype)
