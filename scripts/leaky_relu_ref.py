"""Leaky ReLU."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def leaky_relu(x: NDArray, alpha: float = 0.1) -> NDArray:
    """Return ``x`` where it is positive, else ``alpha * x``; for any shape."""
    wide = x.astype(np.float64)
    return np.where(wide > 0, wide, alpha * wide).astype(x.dtype)
