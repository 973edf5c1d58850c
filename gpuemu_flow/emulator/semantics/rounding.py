"""Correctly rounded results in all rounding modes: round-to-odd intermediates, then one rounding.

A value rounded to odd with at least two bits more than the target stays on its side of every
rounding boundary. Rounding it again in any mode therefore gives the same result as one rounding of
the exact value (Boldo and Melquiond 2008).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import isqrt

import numpy as np

from gpuemu_flow.emulator.types import Array

_ONE = np.uint64(1)
_SPLIT = np.float64(134217729.0)


def two_sum_error(a: Array, b: Array, s: Array) -> Array:
    """Compute the exact rounding error of ``s = a + b`` (Knuth)."""
    t = s - a
    return (a - (s - t)) + (b - t)


def to_odd(value: Array, error: Array) -> Array:
    """Round a float64 result to odd, given the error of its rounding to nearest.

    Parameters
    ----------
    value : float64 array
        The result, rounded to nearest.
    error : float64 array
        Exact value minus `value`, or any number of the same sign.
    """
    bits = value.view(np.uint64)
    wrong = (error != 0) & ((bits & _ONE) == 0) & np.isfinite(value)
    if not wrong.any():
        return value
    away = (error > 0) == (value > 0)
    stepped = np.where(away, bits + _ONE, bits - _ONE)
    crossing = value == 0  # the exact value would be smaller than any that occurs
    return np.where(wrong & ~crossing, stepped, bits).view(np.float64)


def narrow(exact: Array, dtype: type[np.floating], mode: str) -> Array:
    """Round float64 values (exact, or rounded to odd) to a narrower type in a given mode.

    Parameters
    ----------
    exact : float64 array
    dtype : numpy scalar type
    mode : str
        ``rn``, ``rz``, ``rm``, ``rp``.
    """
    near = exact.astype(dtype)
    if mode == "rn":
        return near
    back = near.astype(np.float64)
    low, high = back < exact, back > exact
    if mode == "rm":
        move, toward = high, dtype(-np.inf)
    elif mode == "rp":
        move, toward = low, dtype(np.inf)
    else:
        move = np.where(exact < 0, low, high)
        toward = dtype(0)
    if not move.any():
        return near
    return np.where(move, np.nextafter(near, toward), near)


def exact_fma64(a: float, b: float, c: float, mode: str) -> float:
    """Compute one ``a * b + c`` of finite doubles by rational arithmetic, and round it once."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return round_fraction(exact, mode, negative_zero=_zero_is_negative(a, b, c, mode))


def exact_quotient(a: float, b: float, mode: str) -> float:
    """Divide two finite doubles, neither of them zero, with one rounding."""
    return round_fraction(Fraction(a) / Fraction(b), mode)


def exact_root(a: float, mode: str) -> float:
    """Take the square root of a positive double with one rounding."""
    shift = 2400  # twice the digits of a double, beyond the least exponent
    scaled = Fraction(a) * 2**shift
    whole = scaled.numerator // scaled.denominator
    root = isqrt(whole)
    rest = root * root != whole or scaled.denominator != 1
    return round_fraction(Fraction(2 * root + rest, 2 ** (shift // 2 + 1)), mode)


def one_by_one(
    result: Array, hard: Array, compute: Callable[..., float], *operands: Array
) -> Array:
    """Return `result` with the lanes in the mask `hard` computed again, one at a time.

    Array arithmetic is not exact in these lanes. `compute` gets a lane's number from each of
    `operands`, and returns the lane's result.
    """
    lanes = np.flatnonzero(hard)
    if not lanes.size:
        return result
    flat = result.reshape(-1).copy()
    rows = [np.broadcast_to(x, result.shape).reshape(-1) for x in operands]
    for lane in lanes.tolist():
        flat[lane] = compute(*(float(row[lane]) for row in rows))
    return flat.reshape(result.shape)


def _zero_is_negative(a: float, b: float, c: float, mode: str) -> bool:
    product_negative = np.signbit(a) != np.signbit(b)
    if product_negative == bool(np.signbit(c)) and (a == 0 or b == 0) and c == 0:
        return bool(product_negative)
    return mode == "rm"


def round_fraction(exact: Fraction, mode: str, *, negative_zero: bool = False) -> float:
    """Round a rational number to a double in a mode; 0 gives -0.0 if `negative_zero` is True."""
    if exact == 0:
        return -0.0 if negative_zero else 0.0
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    step = max(exponent, -1022) - 52
    scaled = magnitude / (Fraction(2) ** step)
    whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    negative = exact < 0
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[mode]
    result = Fraction(whole + up) * Fraction(2) ** step
    if result > Fraction(np.finfo(np.float64).max):
        overflow = mode == "rn" or (mode == "rm" and negative) or (mode == "rp" and not negative)
        value = np.inf if overflow else float(np.finfo(np.float64).max)
    else:
        value = float(result)
    return -value if negative else value


def product_error(a: Array, b: Array, p: Array) -> Array:
    """Compute the exact rounding error of ``p = a * b`` (Dekker); exponents must not be extreme."""
    t = _SPLIT * a
    ah = t - (t - a)
    al = a - ah
    t = _SPLIT * b
    bh = t - (t - b)
    bl = b - bh
    return ((ah * bh - p) + ah * bl + al * bh) + al * bl
