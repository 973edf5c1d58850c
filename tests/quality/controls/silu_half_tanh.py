"""Control for scripts/silu.py: the logistic function as (1 + tanh(x/2)) / 2."""

from __future__ import annotations

import numpy as np
from lib.protocol import read_request, write_output
from numpy.typing import NDArray


@np.errstate(all="ignore")
def silu(x: NDArray) -> NDArray:
    """``x * sigmoid(x)``."""
    v = x.astype(np.float32)
    return (v * (np.float32(0.5) + np.float32(0.5) * np.tanh(v / 2))).astype(x.dtype)


if __name__ == "__main__":
    inputs, _ = read_request()
    write_output(silu(inputs["x"]))
