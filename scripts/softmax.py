"""Softmax over the last axis, online: one pass over column tiles with a running maximum.

Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
"""

from __future__ import annotations

import numpy as np
from lib.tiles import accumulator, finite_shift, load, tiles
from numpy.typing import NDArray

TILE = 128


@np.errstate(all="ignore")
def online(x: NDArray) -> NDArray:
    """Return the softmax of `x` [..., N]; a row that contains NaN or +Inf becomes NaN."""
    acc = accumulator(x.dtype)
    weights = np.empty(x.shape, acc)
    row_max = np.full((*x.shape[:-1], 1), -np.inf, acc)
    row_sum = np.zeros_like(row_max)
    tile_max = []
    for cols in tiles(x.shape[-1], TILE):
        tile = load(x, cols, TILE, -np.inf, acc)
        new_max = np.maximum(row_max, tile.max(axis=-1, keepdims=True))
        shift = finite_shift(new_max)
        numerator = np.exp(tile - shift)
        row_sum = row_sum * np.exp(row_max - shift) + numerator.sum(axis=-1, keepdims=True)
        row_max = new_max
        tile_max.append(new_max)
        weights[..., cols] = numerator[..., : cols.stop - cols.start]

    shift = finite_shift(row_max)
    for cols, seen in zip(tiles(x.shape[-1], TILE), tile_max, strict=True):
        weights[..., cols] *= np.exp(seen - shift) / row_sum
    return weights.astype(x.dtype, copy=False)
