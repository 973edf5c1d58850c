"""RMS normalisation, as a script of the protocol."""

from __future__ import annotations

import numpy as np
from lib.protocol import read_request, write_output
from numpy.typing import NDArray


@np.errstate(all="ignore")
def rmsnorm(x: NDArray, weight: NDArray, eps: float) -> NDArray:
    """Return ``x / sqrt(mean(x^2) + eps) * weight`` over the last axis of `x` [M, N]."""
    wide = x.astype(np.float64)
    root = np.sqrt((wide**2).mean(axis=-1, keepdims=True) + eps)
    return (wide / root * weight.astype(np.float64)).astype(x.dtype)


if __name__ == "__main__":
    inputs, kwargs = read_request()
    write_output(rmsnorm(inputs["x"], inputs["weight"], float(kwargs.get("eps", "1e-6"))))
