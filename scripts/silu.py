"""SiLU in flat blocks, from an exponential that cannot overflow."""

from __future__ import annotations

import numpy as np
from lib.protocol import read_request, write_output
from lib.sigmoid import sigmoid
from lib.tiles import accumulator, load, tiles
from numpy.typing import NDArray

BLOCK = 512


@np.errstate(all="ignore")
def silu(x: NDArray) -> NDArray:
    """Return ``x * sigmoid(x)``; for any shape."""
    acc = accumulator(x.dtype)
    flat = x.reshape(-1)
    y = np.empty(flat.shape, x.dtype)
    for block in tiles(flat.size, BLOCK):
        v = load(flat, block, BLOCK, 0.0, acc)
        y[block] = (v * sigmoid(v))[: block.stop - block.start]
    return y.reshape(x.shape)


if __name__ == "__main__":
    inputs, _ = read_request()
    write_output(silu(inputs["x"]))
