"""Control for scripts/gelu_tanh.py: the formula with tanh, in float32."""

from __future__ import annotations

import math

import numpy as np
from lib.protocol import read_request, write_outputs
from numpy.typing import NDArray


@np.errstate(all="ignore")
def gelu(x: NDArray) -> NDArray:
    """``x / 2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))``."""
    v = x.astype(np.float32)
    inner = np.float32(math.sqrt(2 / math.pi)) * (v + np.float32(0.044715) * v * v * v)
    return (np.float32(0.5) * v * (1 + np.tanh(inner))).astype(x.dtype)


if __name__ == "__main__":
    inputs, _ = read_request()
    write_outputs(y=gelu(inputs["x"]))
