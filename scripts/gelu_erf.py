"""GELU, exact form, with its own normal distribution function: a series inside, a fraction outside.

Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.6 (series of erf with terms of
one sign) and 7.1.14 (continued fraction of erfc).
"""

from __future__ import annotations

import math

import numpy as np
from lib.tiles import accumulator
from numpy.typing import NDArray

SWITCH = 2.0  # from here on the fraction converges faster than the series
SERIES_TERMS = 24
FRACTION_LEVELS = 24
UNDERFLOW = 30.0  # exp(-30^2) is 0 in float64 as well


def erfc_magnitude(z: NDArray) -> NDArray:
    """Return ``erfc(z)`` for ``z >= 0``, in the dtype of `z`; NaN stays NaN."""
    one = z.dtype.type(1)
    inner = np.minimum(z, SWITCH)
    term = inner * one
    series = term.copy()
    for n in range(1, SERIES_TERMS):
        term = term * inner * inner * z.dtype.type(2 / (2 * n + 1))
        series += term
    near = one - z.dtype.type(2 / math.sqrt(math.pi)) * np.exp(-inner * inner) * series

    outer = np.clip(z, SWITCH, UNDERFLOW)
    fraction = outer
    for level in range(FRACTION_LEVELS, 0, -1):
        fraction = outer + z.dtype.type(level / 2) / fraction
    far = np.exp(-outer * outer) / (z.dtype.type(math.sqrt(math.pi)) * fraction)
    return np.where(z < SWITCH, near, far)


@np.errstate(all="ignore")
def gelu(x: NDArray) -> NDArray:
    """Return ``x * Phi(x)``, where Phi is the standard normal distribution; for any shape."""
    v = x.astype(accumulator(x.dtype))
    tail = erfc_magnitude(np.abs(v) * v.dtype.type(math.sqrt(0.5))) / 2
    return (v * np.where(v > 0, 1 - tail, tail)).astype(x.dtype)
