"""Bias and ReLU fused, as a one-dimensional launch: each lane works out its own column."""

from __future__ import annotations

import numpy as np
from lib.protocol import read_request, write_output
from lib.tiles import accumulator
from numpy.typing import NDArray

BLOCK = 256


@np.errstate(all="ignore")
def fused(x: NDArray, bias: NDArray) -> NDArray:
    """Return ``max(x + bias, 0)`` of `x` [M, N] and `bias` [N]."""
    acc = accumulator(x.dtype)
    width = bias.size
    flat = x.reshape(-1)
    y = np.empty(flat.size, x.dtype)
    programs = -(-flat.size // BLOCK)
    for program in range(programs):
        offsets = program * BLOCK + np.arange(BLOCK)
        offsets = offsets[offsets < flat.size]
        value = flat[offsets].astype(acc) + bias[offsets % width].astype(acc)
        y[offsets] = np.maximum(value, 0)
    return y.reshape(x.shape)


if __name__ == "__main__":
    inputs, _ = read_request()
    write_output(fused(inputs["x"], inputs["bias"]))
