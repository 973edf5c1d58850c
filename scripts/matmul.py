"""Matrix product in blocks: each output tile sums the products of K-tiles in float32."""

from __future__ import annotations

import numpy as np
from lib.tiles import accumulator, tiles
from numpy.typing import NDArray

BLOCK_M, BLOCK_N, BLOCK_K = 64, 64, 32


def block(m: NDArray, rows: slice, cols: slice, shape: tuple[int, int], dtype: np.dtype) -> NDArray:
    """Load a tile of `m` with a mask: it has this `shape`, and zeros past the edges of `m`."""
    part = m[rows, cols]
    if part.shape == shape:
        return part.astype(dtype, copy=False)
    tile = np.zeros(shape, dtype)
    tile[: part.shape[0], : part.shape[1]] = part
    return tile


@np.errstate(all="ignore")
def blocked(a: NDArray, b: NDArray, *, alpha: float = 1.0) -> NDArray:
    """Return ``alpha * a @ b`` of `a` [M, K] and `b` [K, N]."""
    acc = accumulator(a.dtype)
    (height, depth), width = a.shape, b.shape[1]
    c = np.empty((height, width), a.dtype)
    for rows in tiles(height, BLOCK_M):
        for cols in tiles(width, BLOCK_N):
            total = np.zeros((BLOCK_M, BLOCK_N), acc)
            for inner in tiles(depth, BLOCK_K):
                tile_a = block(a, rows, inner, (BLOCK_M, BLOCK_K), acc)
                tile_b = block(b, inner, cols, (BLOCK_K, BLOCK_N), acc)
                total += tile_a @ tile_b
            valid = total[: rows.stop - rows.start, : cols.stop - cols.start]
            c[rows, cols] = acc.type(alpha) * valid
    return c
