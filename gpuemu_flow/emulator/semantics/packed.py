"""Packed half-precision arithmetic (PTX ISA, "Half Precision Floating Point", ``f16x2``)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuemu_flow.emulator.semantics.convert import bfloat_to_f32, f64_to_bfloat
from gpuemu_flow.emulator.semantics.floats import to_odd, two_sum_error
from gpuemu_flow.emulator.types import Array

Lanes = Callable[..., Array]


def low(x: Array) -> Array:
    """Return the lower 16 bits."""
    return (x & np.uint32(0xFFFF)).astype(np.uint16)


def high(x: Array) -> Array:
    """Return the upper 16 bits."""
    return (x >> np.uint32(16)).astype(np.uint16)


def pack(lower: Array, upper: Array) -> Array:
    """Join two 16-bit values."""
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
    """Extend a function of 16-bit patterns (bf16) to both halves of packed values."""

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
