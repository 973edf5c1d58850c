"""Conversions between types (PTX ISA, "cvt")."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuemu_flow.emulator.semantics.floats import (
    canonical,
    flush,
    narrow,
    saturate,
    to_odd,
    two_sum_error,
)
from gpuemu_flow.emulator.types import DTYPES, Array, is_float

Lanes = Callable[..., Array]

_DIRECTIONS = ("rn", "rz", "rm", "rp")
_INTEGERS = frozenset(f"{sign}{bits}" for sign in "su" for bits in (8, 16, 32, 64))

_TO_INTEGER: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def bfloat_to_f32(x: Array) -> Array:
    """Widen bfloat16 bits to float32."""
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bfloat(x: Array, mode: str = "rn") -> Array:
    """Round float32 to bfloat16 bits in mode ``rn``, ``rz``, ``rm`` or ``rp``."""
    bits = x.view(np.uint32)
    if mode == "rn":
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    else:
        rounded = bits >> np.uint32(16)
        rest = (bits & np.uint32(0xFFFF)) != 0
        negative = (bits >> np.uint32(31)) != 0
        away = {"rz": False, "rm": negative, "rp": ~negative}[mode]
        rounded = rounded + (rest & away & np.isfinite(x)).astype(np.uint32)
    return np.where(np.isnan(x), np.uint16(0x7FFF), rounded.astype(np.uint16))


def f64_to_bfloat(x: Array, mode: str) -> Array:
    """Convert float64 to bfloat16 bits: round to odd in float32, then round in the given mode."""
    near = narrow(x, np.float32, "rz")
    inexact = (near.astype(np.float64) != x) & np.isfinite(x)
    bits = near.view(np.uint32)
    return f32_to_bfloat((bits | inexact.astype(np.uint32)).view(np.float32), mode)


def tensor_float(x: Array, mode: str) -> Array:
    """Round float32 to tf32 bits in mode ``rna``, ``rn`` or ``rz``."""
    bits = x.view(np.uint32)
    if mode == "rna":
        rounded = bits + np.uint32(0x1000)
    elif mode == "rn":
        rounded = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    else:
        rounded = bits
    rounded = rounded & np.uint32(0xFFFFE000)
    rounded = np.where(np.isinf(x), bits, rounded)
    return np.where(np.isnan(x), np.uint32(0x7FFFFFFF), rounded)


def convert(to: str, source: str, mode: str, *, ftz: bool, sat: bool) -> Lanes | None:
    """Return ``cvt`` between two types as a function of arrays."""
    if source == "bf16":
        inner = convert(to, "f32", mode, ftz=ftz, sat=sat)
        return None if inner is None else lambda x: inner(bfloat_to_f32(x))
    if not (is_float(to) or to in ("bf16", "tf32") or to in _INTEGERS):
        return None
    if is_float(source):
        return _from_float(to, source, mode, ftz=ftz, sat=sat)
    if source not in _INTEGERS or mode not in ("", *_DIRECTIONS):
        return None
    if is_float(to):
        return _integer_to_float(to, source, mode or "rn")
    if to == "bf16":
        return lambda x: f64_to_bfloat(_exact_odd(x), mode or "rn")
    if to == "tf32":
        return None
    return _integer_to_integer(to, source, sat)


def _integer_to_integer(to: str, source: str, sat: bool) -> Lanes:
    target = np.dtype(DTYPES[to])
    if not sat:
        return lambda x: x.astype(target)
    limits, inputs = np.iinfo(target), np.iinfo(np.dtype(DTYPES[source]))
    low, high = max(limits.min, inputs.min), min(limits.max, inputs.max)
    return lambda x: np.clip(x, low, high).astype(target)


def _exact_odd(x: Array) -> Array:
    """Convert integers to float64; round 64-bit integers to odd."""
    near = x.astype(np.float64)
    if x.dtype.itemsize < 8:
        return near
    high = (x >> 11 << 11) if x.dtype.kind == "i" else (x >> np.uint64(11) << np.uint64(11))
    low = x - high
    magnitude = np.abs(near) >= 2.0**53
    odd = high.astype(np.float64)  # exact: at most 53 significant bits
    bits = odd.view(np.uint64)
    # Rounded towards minus infinity, so the odd neighbour lies above for positive numbers.
    up = np.where(odd < 0, bits - np.uint64(1), bits + np.uint64(1))
    stepped = np.where((bits & np.uint64(1)) == 0, up, bits).view(np.float64)
    return np.where(magnitude & (low != 0), np.where(low != 0, stepped, odd), near)


def _integer_to_float(to: str, source: str, mode: str) -> Lanes:
    target = np.dtype(DTYPES[to]).type
    if to == "f64":
        if source not in ("u64", "s64") or mode == "rn":
            return lambda x: x.astype(np.float64)
        return lambda x: _wide_directed(x, mode)
    if mode == "rn" and not (to == "f16" or source in ("u64", "s64")):
        return lambda x: x.astype(target)
    return lambda x: narrow(_exact_odd(x), target, mode)


def _wide_directed(x: Array, mode: str) -> Array:
    near = x.astype(np.float64)
    # Differences from the rounded value fit into 64 bits; 2**64 itself does not.
    top = near >= (2.0**63 if x.dtype.kind == "i" else 2.0**64)
    safe = np.where(top, np.float64(0), near).astype(x.dtype)
    above, below = top | (safe > x), ~top & (safe < x)
    if mode == "rm":
        return np.where(above, np.nextafter(near, -np.inf), near)
    if mode == "rp":
        return np.where(below, np.nextafter(near, np.inf), near)
    move = np.where(near > 0, above, below)
    return np.where(move, np.nextafter(near, np.float64(0)), near)


def _from_float(to: str, source: str, mode: str, *, ftz: bool, sat: bool) -> Lanes | None:
    steps: list[Lanes] = []
    if ftz and source == "f32":
        steps.append(flush)
    if to == "tf32":
        if mode not in ("rna", "rn", "rz"):
            return None
        steps.append(lambda x: tensor_float(x, mode))
    elif to == "bf16":
        if source == "f64":
            steps.append(lambda x: f64_to_bfloat(x, mode or "rn"))
        else:
            steps.append(lambda x: f32_to_bfloat(x.astype(np.float32), mode or "rn"))
    elif is_float(to):
        steps += _float_steps(to, source, mode, ftz=ftz, sat=sat)
    elif to in DTYPES and mode in _TO_INTEGER:
        steps.append(_float_to_integer(to, mode))
    else:
        return None

    def chain(x: Array) -> Array:
        for step in steps:
            x = step(x)
        return x

    return chain


def _float_steps(to: str, source: str, mode: str, *, ftz: bool, sat: bool) -> list[Lanes]:
    steps: list[Lanes] = []
    target = np.dtype(DTYPES[to]).type
    if mode in _TO_INTEGER:
        steps.append(_TO_INTEGER[mode])
    if to != source:
        narrowing = np.dtype(DTYPES[to]).itemsize < np.dtype(DTYPES[source]).itemsize
        if narrowing:
            rounding = mode or "rn"
            steps.append(lambda x: narrow(x.astype(np.float64), target, rounding))
        else:
            steps.append(lambda x: x.astype(target))
    if ftz and to == "f32":
        steps.append(flush)
    steps.append(saturate if sat else canonical)
    return steps


def _float_to_integer(to: str, mode: str) -> Lanes:
    target = np.dtype(DTYPES[to])
    limits = np.iinfo(target)
    rounding = _TO_INTEGER[mode]
    # NaN gives 0, except that 64-bit results are the "integer indefinite" of the ISA's table.
    missing = (
        np.array(1 << 63, np.uint64).astype(target) if target.itemsize == 8 else target.type(0)
    )
    low, high = float(limits.min), float(limits.max)

    def to_integer(x: Array) -> Array:
        whole = rounding(x.astype(np.float64))
        above, below, nan = whole >= high, whole <= low, np.isnan(x)
        inside = np.where(above | below | nan, np.float64(0), whole).astype(target)
        out = np.where(above, target.type(limits.max), inside)
        out = np.where(below, target.type(limits.min), out)
        return np.where(nan, missing, out)

    return to_integer


# Eight-bit floating-point formats (PTX ISA, "Alternate Floating-Point Data Formats").


_BIAS = {"e4m3": 7, "e5m2": 15}
_MANTISSA = {"e4m3": 3, "e5m2": 2}
_LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}


def _table(kind: str) -> Array:
    """Return the value of each of the 256 codes of a format."""
    values = np.zeros(256, np.float32)
    bits, bias = _MANTISSA[kind], _BIAS[kind]
    for code in range(256):
        exponent, fraction = (code & 0x7F) >> bits, code & ((1 << bits) - 1)
        if kind == "e4m3" and code & 0x7F == 0x7F:
            value = np.nan
        elif kind == "e5m2" and exponent == 31:
            value = np.inf if fraction == 0 else np.nan
        elif exponent == 0:
            value = fraction * 2.0 ** (1 - bias - bits)
        else:
            value = (1 + fraction / (1 << bits)) * 2.0 ** (exponent - bias)
        values[code] = -value if code & 0x80 else value
    return values


_TABLES = {kind: _table(kind) for kind in _BIAS}


def unpack_fp8(codes: Array, kind: str) -> Array:
    """Widen 8-bit floats to float32."""
    return _TABLES[kind][codes]


def pack_fp8(x: Array, kind: str, *, relu: bool = False) -> Array:
    """Round values to 8-bit floats (``.rn.satfinite``), saturating at the largest finite number."""
    magnitudes = _TABLES[kind][: 127 if kind == "e4m3" else 124].astype(np.float64)
    value = x.astype(np.float64)
    if relu:
        value = np.where(value < 0, 0.0, value)
    size = np.minimum(np.abs(value), _LARGEST[kind])
    size = np.where(np.isnan(size), 0.0, size)
    above = np.searchsorted(magnitudes, size)
    below = np.maximum(above - 1, 0)
    above = np.minimum(above, len(magnitudes) - 1)
    up, down = magnitudes[above] - size, size - magnitudes[below]
    even = above % 2 == 0
    code = np.where((up < down) | ((up == down) & even), above, below)
    code = np.where(magnitudes[above] == size, above, code).astype(np.uint8)
    code = code | np.where(np.signbit(value), np.uint8(0x80), np.uint8(0))
    return np.where(np.isnan(x), np.uint8(0x7F), code)


# Packed half-precision arithmetic (PTX ISA, "Half Precision Floating Point", ``f16x2``).


def low(x: Array) -> Array:
    return (x & np.uint32(0xFFFF)).astype(np.uint16)


def high(x: Array) -> Array:
    return (x >> np.uint32(16)).astype(np.uint16)


def pack(lower: Array, upper: Array) -> Array:
    bits = [x.view(np.uint16).astype(np.uint32) for x in (lower, upper)]
    return bits[0] | (bits[1] << np.uint32(16))


def twice_f16(function: Lanes) -> Lanes:
    """Extend a function of f16 to both halves of packed values."""

    def both(*xs: Array) -> Array:
        return pack(
            function(*(low(x).view(np.float16) for x in xs)),
            function(*(high(x).view(np.float16) for x in xs)),
        )

    return both


def twice_bits(function: Lanes) -> Lanes:
    def both(*xs: Array) -> Array:
        return pack(function(*map(low, xs)), function(*map(high, xs)))

    return both


def twice_integers(function: Lanes, dtype: str) -> Lanes:
    """Extend a function of 16-bit integers to both halves of packed values."""

    def both(*xs: Array) -> Array:
        return pack(
            function(*(low(x).view(dtype) for x in xs)),
            function(*(high(x).view(dtype) for x in xs)),
        )

    return both


def in_bfloat(function: Lanes) -> Lanes:
    """Turn a float64 function, exact or rounded to odd, into a function of bf16 bits."""

    def compute(*xs: Array) -> Array:
        wide = [bfloat_to_f32(x).astype(np.float64) for x in xs]
        return f64_to_bfloat(function(*wide), "rn")

    return compute


def odd_sum(a: Array, b: Array) -> Array:
    """Add float64 values and round the sum to odd."""
    total = a + b
    return to_odd(total, two_sum_error(a, b, total))


def odd_fma(a: Array, b: Array, c: Array) -> Array:
    """Compute ``a * b + c`` and round it to odd; ``a * b`` must be exact in float64."""
    return odd_sum(a * b, c)


def relu(function: Lanes) -> Lanes:
    """Add ``.relu`` to f16 arithmetic: negative results give 0, NaN stays."""

    def clamped(*xs: Array) -> Array:
        out = function(*xs)
        return np.where(out < 0, out.dtype.type(0), out)

    return clamped


def bfloat_relu(function: Lanes) -> Lanes:
    """Wrap a bf16 function on bit patterns so that it also applies ``.relu``."""

    def clamped(*xs: Array) -> Array:
        out = function(*xs)
        return np.where(bfloat_to_f32(out) < 0, np.uint16(0), out)

    return clamped
