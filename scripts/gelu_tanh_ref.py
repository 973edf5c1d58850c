"""GELU, tanh form."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


@np.errstate(all="ignore")
def gelu_tanh(x: NDArray) -> NDArray:
    """Return ``x / 2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))`` (Hendrycks, Gimpel 2016)."""
    wide = x.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    return (0.5 * wide * (1 + np.tanh(inner))).astype(x.dtype)
