"""Leaky ReLU without a branch: the positive part plus alpha times the negative part."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK = 2048


def leaky_relu(x: NDArray, alpha: float = 0.1) -> NDArray:
    """Return ``x`` where it is positive, else ``alpha * x``; compute it in float32 or wider."""
    acc = np.float64 if x.dtype == np.float64 else np.float32
    flat = x.reshape(-1)
    y = np.empty(flat.shape, x.dtype)
    for start in range(0, flat.size, BLOCK):
        block = slice(start, start + BLOCK)
        v = flat[block].astype(acc)
        y[block] = np.maximum(v, 0) + acc(alpha) * np.minimum(v, 0)
    return y.reshape(x.shape)
