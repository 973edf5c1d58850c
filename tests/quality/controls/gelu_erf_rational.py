"""Control for scripts/gelu_erf.py: erf by a polynomial times an exponential.

Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26; absolute error 1.5e-7.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

COEFFICIENTS = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


@np.errstate(all="ignore")
def gelu(x: NDArray) -> NDArray:
    """``x / 2 * (1 + erf(x / sqrt(2)))``."""
    v = x.astype(np.float32)
    z = np.abs(v) * np.float32(math.sqrt(0.5))
    t = 1 / (1 + np.float32(0.3275911) * z)
    polynomial = np.zeros_like(t)
    for coefficient in COEFFICIENTS:
        polynomial = (polynomial + np.float32(coefficient)) * t
    tail = polynomial * np.exp(-z * z) / 2
    return (v * np.where(v > 0, 1 - tail, tail)).astype(x.dtype)
