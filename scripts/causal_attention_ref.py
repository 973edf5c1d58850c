"""Causal attention with the whole masked score matrix."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


@np.errstate(all="ignore")
def causal_attention(q: NDArray, k: NDArray, v: NDArray) -> NDArray:
    """Return ``softmax(mask(q k^T / sqrt(D))) v`` [B, H, S, D]; query i sees keys 0 to i."""
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) / np.sqrt(q.shape[3])
    visible = np.tril(np.ones(scores.shape[2:], dtype=bool))
    scores = np.where(visible, scores, -np.inf)
    e = np.exp(scores - scores.max(axis=3, keepdims=True))
    return (e @ v.astype(np.float64) / e.sum(axis=3, keepdims=True)).astype(q.dtype)
