"""Bias and ReLU."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


@np.errstate(all="ignore")
def bias_add_relu(x: NDArray, bias: NDArray) -> NDArray:
    """Return ``max(x + bias, 0)`` of `x` [M, N] and `bias` [N]."""
    return np.maximum(x.astype(np.float64) + bias.astype(np.float64), 0).astype(x.dtype)
