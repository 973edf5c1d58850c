"""GELU, exact form, with the C library's erf."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

erf = np.vectorize(math.erf, otypes=[np.float64])


@np.errstate(all="ignore")
def gelu_erf(x: NDArray) -> NDArray:
    """Return ``x / 2 * (1 + erf(x / sqrt(2)))``; Hendrycks and Gimpel, 2016."""
    wide = x.astype(np.float64)
    return (0.5 * wide * (1 + erf(wide / np.sqrt(2)))).astype(x.dtype)
