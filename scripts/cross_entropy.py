"""Cross-entropy of logits against class labels, fused: online log-sum-exp, one pass over tiles."""

from __future__ import annotations

import numpy as np
from lib.tiles import accumulator, finite_shift, load, tiles
from numpy.typing import NDArray

TILE = 64


@np.errstate(all="ignore")
def fused(logits: NDArray, labels: NDArray) -> NDArray:
    """Return each row's loss [N], from `logits` [N, C] and `labels` [N]; 0 for an invalid label."""
    acc = accumulator(logits.dtype)
    rows, classes = logits.shape
    row_max = np.full(rows, -np.inf, acc)
    row_sum = np.zeros(rows, acc)
    target = np.zeros(rows, acc)
    for cols in tiles(classes, TILE):
        tile = load(logits, cols, TILE, -np.inf, acc)
        new_max = np.maximum(row_max, tile.max(axis=1))
        shift = finite_shift(new_max)
        row_sum *= np.exp(row_max - shift)
        row_sum += np.exp(tile - shift[:, None]).sum(axis=1)
        row_max = new_max
        lane = cols.start + np.arange(TILE)
        target += np.where(lane == labels[:, None], tile, 0).sum(axis=1)

    lse = np.where(np.isinf(row_max), row_max, row_max + np.log(row_sum))
    valid = (labels >= 0) & (labels < classes)
    return np.where(valid, lse - target, 0).astype(logits.dtype)
