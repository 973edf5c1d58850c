"""Normal values from whole arrays of uniform values, equal to what the C library computes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.rng_words import SMALLEST_UNIFORM, box_muller

Doubles = NDArray[np.float64]

BLOCK = 4096  # pairs at a time, so that the temporaries stay in the cache
FEW = 96  # up to it, calls per value cost less than passes over arrays
ROUNDED_BITS = 29  # mantissa bits that float64 has and float32 has not
GUARD_ULPS = 4096  # of float64; hundreds of times the error of `approximate_normals`
NEAR_ZERO = 2.0**-20  # below it the error is not bounded by a few ulp

# pi in two parts: small multiples of the first are exact, the second carries the bits below it.
_PI_HIGH = math.floor(math.pi * 2.0**30) / 2.0**30
_PI_LOW = (math.pi - _PI_HIGH) + 1.2246467991473532e-16
# Taylor's series to x**19; on [-pi/2, pi/2] the first term left out is below 3e-16.
_SINE_SERIES = tuple((-1.0) ** n / math.factorial(2 * n + 1) for n in range(9, 0, -1))


def normals_f64(uniforms: Doubles) -> Doubles:
    """Turn pairs of uniform values into pairs of normal ones by the C library's functions."""
    draws = uniforms.tolist()
    pairs = map(box_muller, draws[0::2], draws[1::2])
    return np.array([value for pair in pairs for value in pair], dtype=np.float64)


def normals_f32(uniforms: Doubles) -> NDArray[np.float32]:
    """Return exactly the values of `normals_f64` rounded to float32, but faster.

    The values are first computed in float64 with vectorised functions. These differ from the C
    library's functions in the last bits of their results. The difference changes the float32 only
    if the float64 is near a rounding boundary. So only values near a boundary, and values near 0,
    are computed again with the C library.
    """
    if uniforms.size <= FEW:
        return normals_f64(uniforms).astype(np.float32)
    values = np.empty(uniforms.size, dtype=np.float32)
    for first in range(0, uniforms.size, 2 * BLOCK):
        block = uniforms[first : first + 2 * BLOCK]
        approximate = approximate_normals(block)
        rounded = values[first : first + block.size]
        rounded[...] = approximate
        for index in np.flatnonzero(_doubtful(approximate)).tolist():
            pair = index & ~1
            exact = box_muller(float(block[pair]), float(block[pair + 1]))
            rounded[index] = exact[index - pair]
    return values


def _doubtful(values: Doubles) -> NDArray[np.bool_]:
    """Return a mask of the approximate float64 values that may round to a wrong float32.

    These are values within `GUARD_ULPS` of a rounding boundary, and values near 0, whose errors may
    be larger.
    """
    tie = 1 << (ROUNDED_BITS - 1)
    distance = values.view(np.uint64) & np.uint64((1 << ROUNDED_BITS) - 1)
    distance -= np.uint64(tie - GUARD_ULPS)  # wraps to a large number below the boundary
    doubtful: NDArray[np.bool_] = distance <= np.uint64(2 * GUARD_ULPS)
    doubtful |= np.abs(values) < NEAR_ZERO
    return doubtful


def approximate_normals(uniforms: Doubles) -> Doubles:
    """Approximate the values of `normals_f64` with vectorised functions, which are faster.

    The errors are a few ulp. They may be larger in values whose magnitude is below `NEAR_ZERO`.
    """
    radius = np.maximum(uniforms[0::2], SMALLEST_UNIFORM)
    np.log(radius, radius)
    np.multiply(radius, -2.0, radius)
    np.sqrt(radius, radius)
    angle = uniforms[1::2] * (2.0 * math.pi)
    normals = np.empty(uniforms.size, dtype=np.float64)
    np.multiply(_cosine(angle), radius, normals[0::2])
    np.multiply(_sine(angle), radius, normals[1::2])
    return normals


def _sine(angle: Doubles) -> Doubles:
    """Return the sine of angles in [0, 2 pi].

    Let k be ``angle / pi``, rounded to an integer. The sine is ``(-1)**k sin(angle - k pi)``.
    """
    half_turns = np.rint(angle * (1.0 / math.pi))  # 0, 1 or 2
    sign = half_turns - 1.0
    np.multiply(sign, sign, sign)
    np.multiply(sign, 2.0, sign)
    np.subtract(sign, 1.0, sign)
    return _signed_sine(angle, half_turns, sign)


def _cosine(angle: Doubles) -> Doubles:
    """Return the cosine of angles in [0, 2 pi].

    Let k be 0 for angles below pi, else 1. The cosine is ``-(-1)**k sin(angle - (k + 1/2) pi)``.
    """
    half_turns = np.floor(angle * (1.0 / math.pi))  # 0 or 1; 2 only where the angle is 2 pi
    np.minimum(half_turns, 1.0, out=half_turns)
    sign = 2.0 * half_turns
    np.subtract(sign, 1.0, sign)
    np.add(half_turns, 0.5, half_turns)
    return _signed_sine(angle, half_turns, sign)


def _signed_sine(angle: Doubles, half_turns: Doubles, sign: Doubles) -> Doubles:
    """Return ``sign * sin(angle - half_turns * pi)`` for a difference in [-pi/2, pi/2].

    The sine is computed from a series, because numpy's float64 sine branches on each value's
    quadrant.
    """
    scratch = half_turns * _PI_HIGH
    x = angle - scratch
    np.multiply(half_turns, _PI_LOW, scratch)
    np.subtract(x, scratch, x)
    np.multiply(x, sign, x)
    square = np.multiply(x, x, scratch)
    series = square * _SINE_SERIES[0]
    for coefficient in _SINE_SERIES[1:]:
        np.add(series, coefficient, series)
        np.multiply(series, square, series)
    np.multiply(series, x, series)
    return np.add(x, series, x)
