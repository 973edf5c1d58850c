"""Layer normalisation, fused: statistics of column tiles merged by Chan's form of Welford's update.

Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
variances", 1979: ``M2 = M2_a + M2_b + delta^2 * n_a * n_b / (n_a + n_b)``.
"""

from __future__ import annotations

import numpy as np
from lib.tiles import accumulator, load, tiles
from numpy.typing import NDArray

TILE = 128


@np.errstate(all="ignore")
def welford(
    x: NDArray, weight: NDArray, bias: NDArray, *, eps: float = 1e-5
) -> tuple[NDArray, NDArray, NDArray]:
    """Return the normalised rows [M, N], their means [M] and 1 / standard deviations [M]."""
    acc = accumulator(x.dtype)
    rows, width = x.shape
    total = np.zeros((rows, 1), acc)
    squares = np.zeros((rows, 1), acc)  # sum of squared distances from the mean so far
    seen = 0
    for cols in tiles(width, TILE):
        count = cols.stop - cols.start
        tile = load(x, cols, TILE, 0.0, acc)
        tile_sum = tile.sum(axis=1, keepdims=True)
        tile_mean = tile_sum / count
        lane = np.arange(TILE) < count
        centred = np.where(lane, tile - tile_mean, 0)
        squares += (centred * centred).sum(axis=1, keepdims=True)
        if seen:
            delta = tile_mean - total / seen
            squares += delta * delta * (seen * count / (seen + count))
        total += tile_sum
        seen += count

    mean = total / width
    rstd = 1 / np.sqrt(squares / width + eps)
    y = np.empty(x.shape, x.dtype)
    for cols in tiles(width, TILE):
        normalised = (x[:, cols].astype(acc) - mean) * rstd
        y[:, cols] = normalised * weight[cols].astype(acc) + bias[cols].astype(acc)
    return y, mean[:, 0].astype(x.dtype), rstd[:, 0].astype(x.dtype)
