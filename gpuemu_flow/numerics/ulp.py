"""Distances in units in the last place (ulp), and the spacing of values in a format."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import FloatLimits, to_float32

Array = NDArray[Any]
Float64Array = NDArray[np.float64]

NON_FINITE_DISTANCE = (1 << 64) - 1
"""Distance reported where either operand is NaN or infinite, as in wire protocol v1."""

_EXPONENT_FIELD = np.int64(0x7FF << 52)


def bit_view(array: Array) -> Array:
    """View the bit patterns of a float array as signed integers of the same width."""
    return array.view(np.dtype(f"i{array.dtype.itemsize}"))


def ordered_keys(array: Array) -> NDArray[np.int64]:
    """Return integer keys in the order of the floats, consecutive for neighbours in the format.

    A key is the bit pattern as a signed integer; where it is negative, all bits but the sign are
    inverted. +0 and -0 get 0 and -1, one apart, as in wire protocol v1. NaNs lie beyond the
    infinities.
    """
    bits = bit_view(array)
    top = bits.dtype.type(8 * array.itemsize - 1)
    flipped = (bits >> top) & np.iinfo(bits.dtype).max
    flipped ^= bits
    keys: NDArray[np.int64] = flipped.astype(np.int64, copy=False)
    return keys


def ulp_distance(actual: Array, expected: Array) -> NDArray[np.uint64]:
    """Count the steps between representable values of the dtype from `expected` to `actual`."""
    key_a, key_e = ordered_keys(actual), ordered_keys(expected)
    # Modulo 2**64 the larger minus the smaller is the exact distance; float64 needs all 64 bits.
    with np.errstate(over="ignore"):
        steps = np.subtract(np.maximum(key_a, key_e), np.minimum(key_a, key_e)).view(np.uint64)
    finite = _is_finite(actual) & _is_finite(expected)
    distance: NDArray[np.uint64] = np.where(finite, steps, np.uint64(NON_FINITE_DISTANCE))
    return distance


def _is_finite(array: Array) -> NDArray[np.bool_]:
    result: NDArray[np.bool_] = np.isfinite(array if array.itemsize > 2 else to_float32(array))
    return result


def spacing(values: Float64Array, fmt: FloatLimits) -> Float64Array:
    """Return the distance from each value's magnitude to the next larger one in the format.

    The distance is ``2 ** (max(floor(log2 |v|), min_exponent) - mantissa_bits)``. Magnitudes beyond
    the format's largest value count as the largest.
    """
    clipped = np.minimum(np.abs(values), fmt.max)
    # Clearing the fraction leaves the power of two below; zero for float64 subnormals, which the
    # smallest normal number then stands in for.
    powers = (clipped.view(np.int64) & _EXPONENT_FIELD).view(np.float64)
    result: Float64Array = np.maximum(powers, fmt.smallest_normal) * fmt.eps
    return result


def max_steps_finite(actual: Array, expected: Array, scratch: Array) -> int:
    """Return the largest `ulp_distance` of two finite arrays of one dtype, by integer arithmetic.

    Bit patterns of one sign are ordered like the values, so that their difference is the distance.
    If the signs differ, the distance is the sum of both distances from zero, plus one for the step
    between the two zeros.
    """
    bits_a, bits_e = bit_view(actual), bit_view(expected)
    difference = scratch.view(bits_a.dtype)[: bits_a.size]
    np.bitwise_xor(bits_a, bits_e, out=difference)
    crossing = None
    if int(np.minimum.reduce(difference)) < 0:
        crossing = np.flatnonzero(difference < 0)
    np.subtract(bits_a, bits_e, out=difference)
    if crossing is not None:
        difference[crossing] = 0
    largest = max(int(np.maximum.reduce(difference)), -int(np.minimum.reduce(difference)))
    if crossing is None:
        return largest
    magnitude = np.uint64((1 << (8 * actual.itemsize - 1)) - 1)
    across = (bits_a[crossing].astype(np.uint64) & magnitude) + (
        bits_e[crossing].astype(np.uint64) & magnitude
    )
    return max(largest, int(across.max()) + 1)


def max_spacings_finite(
    error: Float64Array, expected: Float64Array, fmt: FloatLimits, scratch: Float64Array
) -> float:
    """Return the largest ``error / spacing(expected)`` of finite values; overwrites `scratch`."""
    powers = scratch[: expected.size]
    np.bitwise_and(expected.view(np.int64), _EXPONENT_FIELD, out=powers.view(np.int64))
    np.clip(powers, fmt.smallest_normal, 2.0**fmt.max_exponent, out=powers)
    np.divide(error, powers, out=powers)
    return float(np.maximum.reduce(powers)) / fmt.eps
