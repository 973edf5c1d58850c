"""Tiles and masked loads, which stand in numpy for the block pointers of a GPU kernel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import DTypeLike, NDArray


def accumulator(dtype: DTypeLike) -> np.dtype:
    """Return the dtype that a kernel computes in: float64 for float64 storage, else float32."""
    return np.dtype(np.float64) if np.dtype(dtype) == np.float64 else np.dtype(np.float32)


def tiles(length: int, width: int) -> Iterator[slice]:
    """Yield slices of `width` that cover ``range(length)``; the last slice may be shorter."""
    for start in range(0, length, width):
        yield slice(start, min(start + width, length))


def load(x: NDArray, cols: slice, width: int, other: float, dtype: DTypeLike) -> NDArray:
    """Load ``x[..., cols]`` with a mask, as a tile that is always `width` wide.

    Parameters
    ----------
    x : array of shape [..., N]
    cols : slice
        One of the slices that `tiles` yields.
    width : int
        Lanes of the tile.
    other : float
        Value of the lanes past the end of the row.
    dtype : dtype
        Dtype of the tile.

    Returns
    -------
    array of shape [..., width]
        The tile. It may be a view of `x`, so it must not be written to.
    """
    part = x[..., cols]
    valid = part.shape[-1]
    if valid == width:
        return part.astype(dtype, copy=False)
    tile = np.full((*part.shape[:-1], width), other, dtype)
    tile[..., :valid] = part
    return tile


def finite_shift(row_max: NDArray) -> NDArray:
    """Return the shift to subtract before exp: the row maximum, or 0 if the maximum is -Inf."""
    return np.where(np.isneginf(row_max), 0, row_max).astype(row_max.dtype, copy=False)
