"""Attention in one pass over key tiles, with an online softmax; no score matrix is ever whole.

Dao et al., "FlashAttention: fast and memory-efficient exact attention with IO-awareness", 2022.
"""

from __future__ import annotations

import math

import numpy as np
from lib.tiles import accumulator, finite_shift, tiles
from numpy.typing import NDArray

BLOCK_Q, BLOCK_K = 64, 32


@np.errstate(all="ignore")
def flash(q: NDArray, k: NDArray, v: NDArray) -> dict[str, NDArray]:
    """Return ``softmax(q k^T / sqrt(D)) v`` [B, H, S, D], and the scores' log-sum-exp [B, H, S]."""
    acc = accumulator(q.dtype)
    length, depth = q.shape[2], q.shape[3]
    scale = acc.type(1 / math.sqrt(depth))
    out = np.empty(q.shape, q.dtype)
    lse = np.empty(q.shape[:3], q.dtype)
    for queries in tiles(length, BLOCK_Q):
        tile_q = q[:, :, queries].astype(acc) * scale
        row_max = np.full((*tile_q.shape[:3], 1), -np.inf, acc)
        row_sum = np.zeros_like(row_max)
        total = np.zeros_like(tile_q)
        for keys in tiles(k.shape[2], BLOCK_K):
            scores = tile_q @ k[:, :, keys].astype(acc).swapaxes(2, 3)
            new_max = np.maximum(row_max, scores.max(axis=3, keepdims=True))
            shift = finite_shift(new_max)
            weights = np.exp(scores - shift)
            rescale = np.exp(row_max - shift)
            row_sum = row_sum * rescale + weights.sum(axis=3, keepdims=True)
            total = total * rescale + weights @ v[:, :, keys].astype(acc)
            row_max = new_max
        out[:, :, queries] = total / row_sum
        lse[:, :, queries] = (finite_shift(row_max) + np.log(row_sum))[..., 0]
    return {"out": out, "lse": lse}
