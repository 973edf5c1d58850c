"""Cumulative sum by a blocked scan: Hillis-Steele inside a tile, a carry from tile to tile.

Hillis and Steele, "Data parallel algorithms", 1986.
"""

from __future__ import annotations

import numpy as np
from lib.protocol import read_request, write_outputs
from lib.tiles import accumulator, load, tiles
from numpy.typing import NDArray

TILE = 64


@np.errstate(all="ignore")
def scan(x: NDArray) -> NDArray:
    """Return the inclusive prefix sums of `x` over its last axis, rounded once at the end."""
    acc = accumulator(x.dtype)
    y = np.empty(x.shape, x.dtype)
    carry = np.zeros((*x.shape[:-1], 1), acc)
    for cols in tiles(x.shape[-1], TILE):
        tile = load(x, cols, TILE, 0.0, acc)
        reach = 1
        while reach < TILE:
            shifted = np.zeros_like(tile)
            shifted[..., reach:] = tile[..., :-reach]
            tile = tile + shifted
            reach *= 2
        tile = tile + carry
        y[..., cols] = tile[..., : cols.stop - cols.start]
        carry = tile[..., -1:]
    return y


if __name__ == "__main__":
    inputs, _ = read_request()
    write_outputs(y=scan(inputs["x"]))
