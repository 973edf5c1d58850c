"""L2 normalisation of rows, with a running scale so that no square over- or underflows.

The scaled sum of squares is that of BLAS ``nrm2``: Hammarling, in Lawson et al., "Basic Linear
Algebra Subprograms for Fortran usage", 1979.
"""

from __future__ import annotations

import numpy as np
from lib.tiles import accumulator, load, tiles
from numpy.typing import NDArray

TILE = 96


@np.errstate(all="ignore")
def scaled(x: NDArray, *, eps: float = 1e-6) -> NDArray:
    """Return ``x / sqrt(sum(x^2) + eps)`` over the last axis of `x` [..., N]."""
    acc = accumulator(x.dtype)
    width = x.shape[-1]
    scale = np.zeros((*x.shape[:-1], 1), acc)  # largest magnitude so far
    squares = np.zeros_like(scale)  # sum of (x / scale)^2 so far
    for cols in tiles(width, TILE):
        tile = load(x, cols, TILE, 0.0, acc)
        new_scale = np.maximum(scale, np.abs(tile).max(axis=-1, keepdims=True))
        divisor = np.where(new_scale > 0, new_scale, 1)
        squares *= (scale / divisor) ** 2
        squares += ((tile / divisor) ** 2).sum(axis=-1, keepdims=True)
        scale = new_scale

    norm = np.where(np.isinf(scale), scale, scale * np.sqrt(squares))
    denominator = np.hypot(norm, np.sqrt(eps)).astype(acc)
    y = np.empty(x.shape, x.dtype)
    for cols in tiles(width, TILE):
        y[..., cols] = x[..., cols].astype(acc) / denominator
    return y
