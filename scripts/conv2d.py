"""3 x 3 convolution as a matrix product: im2col, then tiles over the reduction axis in float32.

Chellapilla, Puri and Simard, "High performance convolutional neural networks for document
processing", 2006.
"""

from __future__ import annotations

import numpy as np
from lib.tiles import accumulator, tiles
from numpy.typing import NDArray

TILE_K = 32


def im2col(x: NDArray, size: int) -> NDArray:
    """Return the patches of zero-padded `x` [N, C, H, W] as [N, C * size * size, H * W]."""
    batch, channels, height, width = x.shape
    pad = size // 2
    padded = np.zeros((batch, channels, height + 2 * pad, width + 2 * pad), x.dtype)
    padded[:, :, pad : pad + height, pad : pad + width] = x
    columns = np.empty((batch, channels, size, size, height, width), x.dtype)
    for r in range(size):
        for s in range(size):
            columns[:, :, r, s] = padded[:, :, r : r + height, s : s + width]
    return columns.reshape(batch, channels * size * size, height * width)


@np.errstate(all="ignore")
def im2col_gemm(x: NDArray, w: NDArray) -> NDArray:
    """Correlate `x` [N, C, H, W] with `w` [K, C, 3, 3] at stride 1, with a border of one zero."""
    acc = accumulator(x.dtype)
    columns = im2col(x.astype(acc), w.shape[2])
    filters = w.reshape(w.shape[0], -1).astype(acc)
    total = np.zeros((x.shape[0], w.shape[0], columns.shape[2]), acc)
    for inner in tiles(columns.shape[1], TILE_K):
        total += filters[:, inner] @ columns[:, inner]
    return total.reshape(x.shape[0], w.shape[0], *x.shape[2:]).astype(x.dtype)
