"""Transposed copy through square tiles, with the pointer arithmetic of a kernel.

Every element is fetched by its offset in memory, computed from the strides. A layout that is not
contiguous therefore matters here as it does in a kernel.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

TILE = 32


def memory_of(x: NDArray) -> NDArray:
    """Return the memory from the first to the last element of `x`, with gaps, as a flat array."""
    span = 1 + sum((n - 1) * s // x.itemsize for n, s in zip(x.shape, x.strides, strict=True))
    return as_strided(x, (span,), (x.itemsize,), writeable=False)


def tiled(x: NDArray) -> NDArray:
    """Return ``x.T`` of `x` [M, N] as a new C-contiguous array [N, M]; for any dtype."""
    if x.size == 0 or any(s < 0 or s % x.itemsize for s in x.strides):
        x = np.ascontiguousarray(x)
    rows, cols = x.shape
    out = np.empty((cols, rows), x.dtype)
    if x.size == 0:
        return out
    source, target = memory_of(x), out.reshape(-1)
    stride_m, stride_n = (s // x.itemsize for s in x.strides)
    lane = np.arange(TILE)
    for row_start in range(0, rows, TILE):
        for col_start in range(0, cols, TILE):
            i = (row_start + lane)[:, None]
            j = (col_start + lane)[None, :]
            mask = (i < rows) & (j < cols)
            shared = source[(i * stride_m + j * stride_n)[mask]]
            target[(j * rows + i)[mask]] = shared
    return out
