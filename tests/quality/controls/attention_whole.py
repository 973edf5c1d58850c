"""Control for scripts/attention.py: the whole score matrix in float32, normalised before v."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


@np.errstate(all="ignore")
def flash(q: NDArray, k: NDArray, v: NDArray) -> dict[str, NDArray]:
    """Attention output [B, H, S, D] and log-sum-exp of the scores [B, H, S]."""
    wide_q, wide_k = q.astype(np.float32), k.astype(np.float32)
    scores = np.einsum("bhqd,bhkd->bhqk", wide_q, wide_k) / np.float32(math.sqrt(q.shape[3]))
    maximum = scores.max(axis=3, keepdims=True)
    shift = np.where(np.isneginf(maximum), 0, maximum)
    e = np.exp(scores - shift)
    total = e.sum(axis=3, keepdims=True)
    out = (e / total) @ v.astype(np.float32)
    lse = (shift + np.log(total))[..., 0]
    return {"out": out.astype(q.dtype), "lse": lse.astype(q.dtype)}
