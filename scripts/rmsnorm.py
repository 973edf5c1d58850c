"""RMS normalisation: one partial sum per lane, as the threads of a block keep them, then a tree."""

from __future__ import annotations

import numpy as np
from lib.protocol import read_request, write_output
from lib.tiles import accumulator, load, tiles
from numpy.typing import NDArray

LANES = 64


@np.errstate(all="ignore")
def lanes(x: NDArray, weight: NDArray, eps: float) -> NDArray:
    """Return ``x / sqrt(mean(x^2) + eps) * weight`` of `x` [M, N] and `weight` [N]."""
    acc = accumulator(x.dtype)
    rows, width = x.shape
    partial = np.zeros((rows, LANES), acc)
    for cols in tiles(width, LANES):
        tile = load(x, cols, LANES, 0.0, acc)
        partial += tile * tile

    active = LANES
    while active > 1:  # shuffle-down reduction
        active //= 2
        partial[:, :active] += partial[:, active : 2 * active]
    scale = 1 / np.sqrt(partial[:, :1] / width + eps)

    y = np.empty(x.shape, x.dtype)
    for cols in tiles(width, LANES):
        y[:, cols] = x[:, cols].astype(acc) * scale * weight[cols].astype(acc)
    return y


if __name__ == "__main__":
    inputs, kwargs = read_request()
    write_output(lanes(inputs["x"], inputs["weight"], float(kwargs.get("eps", "1e-6"))))
