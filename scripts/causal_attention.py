"""Causal attention with split keys: each split is reduced on its own, then the splits are merged.

Dao et al., "Flash-Decoding for long-context inference", 2023.
"""

from __future__ import annotations

import math

import numpy as np
from lib.tiles import accumulator, finite_shift, tiles
from numpy.typing import NDArray

SPLIT = 48


@np.errstate(all="ignore")
def split_keys(q: NDArray, k: NDArray, v: NDArray) -> NDArray:
    """Return ``softmax(mask(q k^T / sqrt(D))) v`` [B, H, S, D]; query i sees keys 0 to i."""
    acc = accumulator(q.dtype)
    length, depth = q.shape[2], q.shape[3]
    query_index = np.arange(length)[:, None]
    wide_q = q.astype(acc)
    maxima, sums, outputs = [], [], []
    for keys in tiles(length, SPLIT):
        scores = wide_q @ k[:, :, keys].astype(acc).swapaxes(2, 3)
        scores *= acc.type(1 / math.sqrt(depth))
        key_index = np.arange(keys.start, keys.stop)
        scores = np.where(key_index <= query_index, scores, -np.inf)
        split_max = scores.max(axis=3, keepdims=True)
        weights = np.exp(scores - finite_shift(split_max))
        maxima.append(split_max)
        sums.append(weights.sum(axis=3, keepdims=True))
        outputs.append(weights @ v[:, :, keys].astype(acc))

    split_maxima = np.stack(maxima)
    factors = np.exp(split_maxima - finite_shift(split_maxima.max(axis=0)))
    denominator = (factors * np.stack(sums)).sum(axis=0)
    numerator = (factors * np.stack(outputs)).sum(axis=0)
    return (numerator / denominator).astype(q.dtype)
