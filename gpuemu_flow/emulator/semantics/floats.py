"""Floating-point arithmetic (PTX ISA, "Floating Point Instructions"): exact, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import isqrt

import numpy as np

from gpuemu_flow.emulator.types import Array

Lanes = Callable[..., Array]

_SMALLEST = {np.dtype("f4"): np.float32(2.0**-126), np.dtype("f2"): np.float16(2.0**-14)}
_NANS = {
    np.dtype("f2"): np.array(0x7FFF, "u2").view("f2"),
    np.dtype("f4"): np.array(0x7FFFFFFF, "u4").view("f4"),
    np.dtype("f8"): np.array(0x7FF8000000000000, "u8").view("f8"),
}
"""NaN that an instruction gives: canonical for f16 and f32; f64 keeps the usual quiet NaN."""

_LOW29 = np.uint64(0x1FFFFFFF)
_HALF29 = np.uint64(0x10000000)
_TINY = np.float64(2.0**-125)


def flush(x: Array) -> Array:
    """Flush subnormals to zeros of the same sign (``.ftz``)."""
    small = np.abs(x) < _SMALLEST[x.dtype]
    if not small.any():
        return x
    return np.where(small, np.copysign(x.dtype.type(0), x), x)


def canonical(x: Array) -> Array:
    """Replace each NaN by the one bit pattern that the ISA defines for NaN results."""
    if x.size and np.isnan(np.minimum.reduce(x, axis=None)):
        return np.where(np.isnan(x), _NANS[x.dtype], x)
    return x


def saturate(x: Array) -> Array:
    """Clamp to [0.0, 1.0]; NaN gives +0.0 (``.sat``)."""
    kind = x.dtype.type
    return np.where(x > 0, np.minimum(x, kind(1)), kind(0))


def with_flags(function: Lanes, *, ftz: bool = False, sat: bool = False) -> Lanes:
    """Wrap a function so that it applies ``.ftz`` to operands and result, then ``.sat``. The
    wrapped function returns NaN as the canonical NaN; ``.sat`` replaces NaN by 0."""
    if not ftz and not sat:
        return lambda *xs: canonical(function(*xs))
    if not ftz:
        return lambda *xs: saturate(function(*xs))
    if not sat:
        return lambda *xs: flush(canonical(function(*map(flush, xs))))
    return lambda *xs: saturate(flush(function(*map(flush, xs))))


def wide(x: Array) -> Array:
    return x.astype(np.float64)


def add(mode: str, dtype: str) -> Lanes:
    """Return ``add`` in a rounding mode as a function of arrays (PTX ISA, "add")."""
    if mode == "rn":
        return np.add
    if dtype == "f8":
        return lambda a, b: _directed_sum(a, b, mode)

    def add_narrow(a: Array, b: Array) -> Array:
        a8, b8 = wide(a), wide(b)
        s = a8 + b8
        out = narrow(to_odd(s, two_sum_error(a8, b8, s)), a.dtype.type, mode)
        return _signed_zero_sum(out, a, b, mode)

    return add_narrow


def _signed_zero_sum(out: Array, a: Array, b: Array, mode: str) -> Array:
    """Set the sign of zeros from exact cancellation: minus when rounding down, else plus."""
    if mode != "rm":
        return out
    cancelled = (out == 0) & (np.signbit(a) != np.signbit(b)) & (a == -b)
    return np.where(cancelled, -np.abs(out), out)


def _directed_sum(a: Array, b: Array, mode: str) -> Array:
    s = a + b
    error = two_sum_error(a, b, s)
    out = _adjust(s, error, mode)
    overflowed = np.isinf(s) & np.isfinite(a) & np.isfinite(b)
    if overflowed.any():
        out = np.where(overflowed, _overflow(s, mode), out)
    return _signed_zero_sum(out, a, b, mode)


def _overflow(value: Array, mode: str) -> Array:
    """Return Inf or the largest finite number for results that overflowed in a directed mode."""
    largest = np.copysign(np.finfo(np.float64).max, value)
    keep = (mode == "rm") & (value < 0) | (mode == "rp") & (value > 0)
    return np.where(keep, value, largest)


def _adjust(value: Array, error: Array, mode: str) -> Array:
    """Turn values that were rounded to nearest into the results of the directed rounding `mode`.
    `error` is the exact result minus the rounded value. A value that `mode` rounds to the other
    side of the exact result is replaced by its neighbour on that side."""
    if mode == "rm":
        move, toward = error < 0, np.float64(-np.inf)
    elif mode == "rp":
        move, toward = error > 0, np.float64(np.inf)
    else:
        move = np.where(value > 0, error < 0, error > 0) & (value != 0)
        toward = np.float64(0)
    return np.where(move & np.isfinite(value), np.nextafter(value, toward), value)


def subtract(mode: str, dtype: str) -> Lanes:
    if mode == "rn":
        return np.subtract
    plus = add(mode, dtype)
    return lambda a, b: plus(a, -b)


def multiply(mode: str, dtype: str) -> Lanes:
    if mode == "rn":
        return np.multiply
    if dtype == "f8":
        zero = np.zeros((1, 1))
        fma = fma64(mode)
        return lambda a, b: fma(a, b, np.copysign(zero, a * b))
    return lambda a, b: narrow(wide(a) * wide(b), a.dtype.type, mode)


def fma32(mode: str) -> Lanes:
    """Return ``fma.f32`` in a rounding mode as a function of arrays (PTX ISA, "fma"). The exact sum
    is rounded only once. The product is exact in float64. In mode ``rn``, rounding the float64 sum
    to float32 goes wrong only if that sum was itself rounded, to the middle between two float32
    numbers. Such sums are first rounded to odd in float64, as are all sums in the other modes."""
    if mode == "rn":
        return _fma32_nearest
    return lambda a, b, c: _fma_directed(a, b, c, mode)


def _fma32_nearest(a: Array, b: Array, c: Array) -> Array:
    product = wide(a) * b
    total = product + c
    out = total.astype(np.float32)
    doubtful = (total.view(np.uint64) & _LOW29) == _HALF29
    small = np.abs(total) < _TINY
    if small.any():
        doubtful |= small & (total != 0)
    if doubtful.any():
        c8 = np.broadcast_to(c, total.shape).astype(np.float64)
        p8 = np.broadcast_to(product, total.shape)
        odd = to_odd(total, two_sum_error(p8, c8, total))
        out = np.where(doubtful, odd.astype(np.float32), out)
    return out


def _fma_directed(a: Array, b: Array, c: Array, mode: str) -> Array:
    a, b, c = np.broadcast_arrays(a, b, c)
    product, c8 = wide(a) * b, wide(c)
    total = product + c8
    out = narrow(to_odd(total, two_sum_error(product, c8, total)), a.dtype.type, mode)
    return _signed_zero_sum(out, product, c8, mode)


def fma16(a: Array, b: Array, c: Array) -> Array:
    """Compute ``fma.rn.f16``: the float64 sum is rounded to odd, then to f16."""
    a, b, c = np.broadcast_arrays(a, b, c)
    product, c8 = wide(a) * b, wide(c)
    total = product + c8
    return to_odd(total, two_sum_error(product, c8, total)).astype(np.float16)


def fma64(mode: str) -> Lanes:
    """Return ``fma.f64`` in a rounding mode as a function of arrays (PTX ISA, "fma"). The product
    and the sums are computed together with their rounding errors. The result is rounded to odd,
    then in the given mode. If a lane's exponents are so extreme that the computation of rounding
    errors under- or overflows, the lane is computed separately, in rational arithmetic."""
    return lambda a, b, c: _fma64(a, b, c, mode)


def _fma64(a: Array, b: Array, c: Array, mode: str) -> Array:
    a, b, c = np.broadcast_arrays(a, b, c)
    p = a * b
    naive = p + c
    e = product_error(a, b, p)
    th = c + e
    tl = two_sum_error(c, e, th)
    vh = p + th
    vl = two_sum_error(p, th, vh)
    rest = tl + vl
    rest = to_odd(rest, two_sum_error(tl, vl, rest))
    out = vh + rest
    if mode != "rn":
        out = _adjust(out, two_sum_error(vh, rest, out), mode)
        out = _signed_zero_sum(out, p, c, mode)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    calm = np.isfinite(naive) & _moderate(a) & _moderate(b) & _moderate(p)
    calm &= (_moderate(c) | (c == 0)) & (_moderate(out) | (out == 0))
    nothing = (a == 0) | (b == 0)  # the product is a zero: the sum is exact
    calm |= nothing
    plain = naive if mode == "rn" else _signed_zero_sum(naive, p, c, mode)
    result = np.where(finite & ~nothing, out, plain)
    hard = finite & ~calm
    return one_by_one(result, hard, lambda x, y, z: exact_fma64(x, y, z, mode), a, b, c)


def _moderate(x: Array) -> Array:
    magnitude = np.abs(x)
    return (magnitude > 2.0**-900) & (magnitude < 2.0**900)


def divide(mode: str, dtype: str) -> Lanes:
    if mode == "rn":
        return np.divide
    return lambda a, b: _directed_quotient(a, b, mode)


def _directed_quotient(a: Array, b: Array, mode: str) -> Array:
    a, b = np.broadcast_arrays(a, b)
    near = a / b
    if a.dtype == np.float64:
        rest = -fma64("rn")(near, b, -a)
        error = np.where(b < 0, -rest, rest)
        usable = np.isfinite(near) & (b != 0)
        out = np.where(usable, _adjust(near, error, mode), near)
        overflowed = np.isinf(near) & np.isfinite(a) & np.isfinite(b) & (b != 0)
        out = np.where(overflowed, _overflow(near, mode), out)
        calm = _moderate(a) & _moderate(b) & _moderate(near)
        hard = np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0) & ~calm
        return one_by_one(out, hard, lambda x, y: exact_quotient(x, y, mode), a, b)
    q = wide(a) / wide(b)
    rest = -fma64("rn")(q, wide(b), -wide(a))
    error = np.where(b < 0, -rest, rest)
    usable = np.isfinite(q) & (b != 0)
    return np.where(usable, narrow(to_odd(q, np.where(usable, error, 0)), a.dtype.type, mode), near)


def square_root(mode: str, dtype: str) -> Lanes:
    if mode == "rn":
        return np.sqrt

    def directed(a: Array) -> Array:
        if dtype == "f8":
            root = np.sqrt(a)
            adjusted = _adjust(root, -fma64("rn")(root, root, -a), mode)
            out = np.where(np.isfinite(root), adjusted, root)
            hard = np.isfinite(root) & (a > 0) & ~_moderate(a)
            return one_by_one(out, hard, lambda x: exact_root(x, mode), a)
        a8 = wide(a)
        root = np.sqrt(a8)
        error = -fma64("rn")(root, root, -a8)
        usable = np.isfinite(root)
        return narrow(to_odd(root, np.where(usable, error, 0)), a.dtype.type, mode)

    return directed


def minimum(a: Array, b: Array) -> Array:
    """Compute ``min`` (PTX ISA, "min"): a NaN loses to a number, -0.0 is less than +0.0."""
    return _choose(np.fmin(a, b), a, b, negative=True)


def maximum(a: Array, b: Array) -> Array:
    """Compute ``max`` (PTX ISA, "max"): a NaN loses to a number, +0.0 is more than -0.0."""
    return _choose(np.fmax(a, b), a, b, negative=False)


def _choose(out: Array, a: Array, b: Array, *, negative: bool) -> Array:
    zero = out == 0
    if not zero.any():
        return out
    signs = np.signbit(a) | np.signbit(b) if negative else np.signbit(a) & np.signbit(b)
    both = zero & (a == 0) & (b == 0)
    fixed = np.where(signs, -out.dtype.type(0), out.dtype.type(0))
    return np.where(both, fixed, out)


def minimum_nan(a: Array, b: Array) -> Array:
    """Compute ``min.NaN``: a NaN wins."""
    return np.where(np.isnan(a) | np.isnan(b), _NANS[a.dtype], minimum(a, b))


def maximum_nan(a: Array, b: Array) -> Array:
    """Compute ``max.NaN``: a NaN wins."""
    return np.where(np.isnan(a) | np.isnan(b), _NANS[a.dtype], maximum(a, b))


def copy_sign(a: Array, b: Array) -> Array:
    """Compute ``copysign`` (PTX ISA, "copysign"): the magnitude of `b` with the sign of `a`."""
    return np.copysign(b, a)


def through64(function: Lanes) -> Lanes:
    """Turn a float64 function into an approximate f32 instruction that rounds to nearest."""
    return lambda x: function(wide(x)).astype(np.float32)


def reciprocal_root(x: Array) -> Array:
    """Compute ``1/sqrt(x)``."""
    return 1 / np.sqrt(x)


def test_property(name: str) -> Lanes:
    """Return ``testp`` for one property as a function of arrays (PTX ISA, "testp")."""

    def normal(x: Array) -> Array:
        return np.isfinite(x) & (np.abs(x) >= np.finfo(x.dtype).tiny)

    properties: dict[str, Lanes] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": normal,
        "subnormal": lambda x: np.isfinite(x) & (x != 0) & ~normal(x),
    }
    return properties[name]


# Correctly rounded results in all rounding modes: round-to-odd intermediates, then one
# rounding.


_ONE = np.uint64(1)
_SPLIT = np.float64(134217729.0)


def two_sum_error(a: Array, b: Array, s: Array) -> Array:
    """Compute the exact rounding error of ``s = a + b`` (Knuth)."""
    t = s - a
    return (a - (s - t)) + (b - t)


def to_odd(value: Array, error: Array) -> Array:
    """Round a float64 result to odd, given the error of its rounding to nearest."""
    bits = value.view(np.uint64)
    wrong = (error != 0) & ((bits & _ONE) == 0) & np.isfinite(value)
    if not wrong.any():
        return value
    away = (error > 0) == (value > 0)
    stepped = np.where(away, bits + _ONE, bits - _ONE)
    crossing = value == 0  # the exact value would be smaller than any that occurs
    return np.where(wrong & ~crossing, stepped, bits).view(np.float64)


def narrow(exact: Array, dtype: type[np.floating], mode: str) -> Array:
    """Round float64 values (exact, or rounded to odd) to a narrower type in a given mode."""
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
    """Return `result` with the lanes in the mask `hard` computed again, one at a time. Array
    arithmetic is not exact in these lanes. `compute` gets a lane's number from each of `operands`,
    and returns the lane's result."""
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
