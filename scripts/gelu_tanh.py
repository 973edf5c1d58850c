"""GELU, tanh form, from one exponential: ``(1 + tanh(u)) / 2`` is the logistic function of 2u."""

from __future__ import annotations

import math

import numpy as np
from lib.protocol import read_request, write_outputs
from lib.sigmoid import sigmoid
from lib.tiles import accumulator, load, tiles
from numpy.typing import NDArray

BLOCK = 1024
SLOPE = 2 * math.sqrt(2 / math.pi)
CUBIC = 0.044715


@np.errstate(all="ignore")
def gelu(x: NDArray) -> NDArray:
    """Return ``x / 2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))``; compute it in flat parts."""
    acc = accumulator(x.dtype)
    flat = x.reshape(-1)
    y = np.empty(flat.shape, x.dtype)
    for block in tiles(flat.size, BLOCK):
        v = load(flat, block, BLOCK, 0.0, acc)
        gate = sigmoid(acc.type(SLOPE) * v * (1 + acc.type(CUBIC) * v * v))
        y[block] = (v * gate)[: block.stop - block.start]
    return y.reshape(x.shape)


if __name__ == "__main__":
    inputs, _ = read_request()
    write_outputs(y=gelu(inputs["x"]))
