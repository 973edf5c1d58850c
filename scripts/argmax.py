"""Index of the largest element of each row: a tournament of lanes in a tile, tile after tile.

Ties go to the lower index and a NaN beats every number, as in numpy. The code has to ensure this,
because a tournament does not meet the elements in order.
"""

from __future__ import annotations

import numpy as np
from lib.tiles import accumulator, load, tiles
from numpy.typing import NDArray

TILE = 64

Entry = tuple[NDArray, NDArray]  # values and their column indices


def winner(a: Entry, b: Entry) -> Entry:
    """Return the larger entry of each pair; of two equals or two NaN, the lower index wins."""
    (va, ia), (vb, ib) = a, b
    nan_a, nan_b = np.isnan(va), np.isnan(vb)
    greater = (vb > va) | (nan_b & ~nan_a)
    equal = (vb == va) | (nan_b & nan_a)
    take_b = greater | (equal & (ib < ia))
    return np.where(take_b, vb, va), np.where(take_b, ib, ia)


def tournament(x: NDArray) -> NDArray:
    """Return the index [M], int32, of the largest element of each row of `x` [M, N]."""
    acc = accumulator(x.dtype)
    best: Entry | None = None
    for cols in tiles(x.shape[1], TILE):
        values = load(x, cols, TILE, -np.inf, acc)
        index = np.broadcast_to(cols.start + np.arange(TILE, dtype=np.int32), values.shape)
        entry: Entry = (values, index)
        half = TILE
        while half > 1:
            half //= 2
            left = (entry[0][:, :half], entry[1][:, :half])
            right = (entry[0][:, half:], entry[1][:, half:])
            entry = winner(left, right)
        best = entry if best is None else winner(best, entry)
    if best is None:
        raise ValueError("argmax of empty rows")
    return best[1][:, 0]
