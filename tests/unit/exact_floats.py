"""Floating point by rational arithmetic: what one rounding of the exact value gives, as bits."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import isqrt


@dataclass(frozen=True)
class Format:
    """An IEEE-like binary format: bits of precision with the hidden one, bits of exponent."""

    precision: int
    exponent: int

    @property
    def width(self) -> int:
        return self.precision + self.exponent

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent) - 1) << (self.precision - 1)

    @property
    def nan(self) -> int:
        return (1 << (self.width - 1)) - 1 if self.width < 64 else 0x7FF8 << 48


FORMATS = {
    "f16": Format(11, 5), "bf16": Format(8, 8), "f32": Format(24, 8), "f64": Format(53, 11),
}  # fmt: skip


@dataclass(frozen=True)
class Number:
    """A decoded value: ``nan``, ``inf`` or ``finite``; zeros keep their sign."""

    kind: str
    negative: bool
    value: Fraction = Fraction(0)


@lru_cache(maxsize=1 << 16)
def decode(bits: int, form: Format) -> Number:
    negative = bool(bits >> (form.width - 1))
    magnitude = bits & ((1 << (form.width - 1)) - 1)
    exponent, fraction = magnitude >> (form.precision - 1), magnitude & (
        (1 << (form.precision - 1)) - 1
    )  # fmt: skip
    if exponent == (1 << form.exponent) - 1:
        return Number("nan" if fraction else "inf", negative)
    if exponent:
        fraction |= 1 << (form.precision - 1)
    scale = max(exponent, 1) - form.bias - (form.precision - 1)
    value = Fraction(fraction << max(scale, 0), 1 << max(-scale, 0))
    return Number("finite", negative, -value if negative else value)


def encode(value: Fraction, form: Format, mode: str, *, zero_negative: bool = False) -> int:
    """Round a rational number; the mode decides what is beyond the range."""
    sign = 1 << (form.width - 1)
    if value == 0:
        return sign if zero_negative else 0
    negative, size = value < 0, abs(value)
    above, below = size.numerator, size.denominator
    exponent = above.bit_length() - below.bit_length()
    exponent -= below << max(exponent, 0) > above << max(-exponent, 0)
    step = max(exponent, 1 - form.bias) - (form.precision - 1)
    below <<= max(step, 0)
    whole, rest = divmod(above << max(-step, 0), below)
    away = {
        "rn": 2 * rest > below or (2 * rest == below and whole & 1),
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[mode]
    whole += 1 if away else 0
    # Counting on from the step's place carries into the exponent by itself.
    base = (step + form.precision - 1 + form.bias - 1) << (form.precision - 1)
    bits = base + whole
    if bits >= form.infinity:
        to_infinity = mode == "rn" or ((mode == "rm") == negative and mode != "rz")
        bits = form.infinity if to_infinity else form.infinity - 1
    return bits | (sign if negative else 0)


def flush(bits: int, form: Format) -> int:
    """Flush a subnormal to a zero of its sign."""
    magnitude = bits & ((1 << (form.width - 1)) - 1)
    return bits & (1 << (form.width - 1)) if magnitude < 1 << (form.precision - 1) else bits


def infinity(form: Format, negative: bool) -> int:
    return form.infinity | (negative << (form.width - 1))


def fma(a: int, b: int, c: int, form: Format, mode: str) -> int:
    x, y, z = (decode(v, form) for v in (a, b, c))
    negative = x.negative != y.negative
    kinds = {x.kind, y.kind}
    zero = any(n.kind == "finite" and n.value == 0 for n in (x, y))
    if "nan" in (*kinds, z.kind) or ("inf" in kinds and zero):
        return form.nan
    if "inf" in kinds:
        return form.nan if z.kind == "inf" and z.negative != negative else infinity(form, negative)
    if z.kind == "inf":
        return infinity(form, z.negative)
    product = x.value * y.value
    exact = product + z.value
    if product == 0 and z.value == 0 and negative == z.negative:
        return encode(exact, form, mode, zero_negative=negative)
    return encode(exact, form, mode, zero_negative=mode == "rm")


def add(a: int, b: int, form: Format, mode: str) -> int:
    one = form.bias << (form.precision - 1)
    return fma(a, one, b, form, mode)


def subtract(a: int, b: int, form: Format, mode: str) -> int:
    if decode(b, form).kind == "nan":
        return form.nan
    return add(a, b ^ (1 << (form.width - 1)), form, mode)


def multiply(a: int, b: int, form: Format, mode: str) -> int:
    x, y = decode(a, form), decode(b, form)
    if "nan" in (x.kind, y.kind):
        return form.nan
    negative = x.negative != y.negative
    if "inf" in (x.kind, y.kind):
        other = y if x.kind == "inf" else x
        dead = other.kind == "finite" and other.value == 0
        return form.nan if dead else infinity(form, negative)
    return encode(x.value * y.value, form, mode, zero_negative=negative)


def divide(a: int, b: int, form: Format, mode: str) -> int:
    x, y = decode(a, form), decode(b, form)
    negative = x.negative != y.negative
    if "nan" in (x.kind, y.kind) or (x.kind == "inf" and y.kind == "inf"):
        return form.nan
    if x.kind == "inf":
        return infinity(form, negative)
    if y.kind == "inf":
        return negative << (form.width - 1)
    if y.value == 0:
        return form.nan if x.value == 0 else infinity(form, negative)
    return encode(x.value / y.value, form, mode, zero_negative=negative)


def square_root(a: int, form: Format, mode: str) -> int:
    x = decode(a, form)
    if x.kind == "nan" or (x.negative and not (x.kind == "finite" and x.value == 0)):
        return form.nan
    if x.kind == "inf" or x.value == 0:
        return a
    # Twice as many digits as any format needs, and a mark for what is left over.
    shift = 4 * 1200
    scaled = x.value * (1 << shift)
    whole = scaled.numerator // scaled.denominator
    root = isqrt(whole)
    exact = root * root == whole and scaled.denominator == 1
    value = Fraction(2 * root + (0 if exact else 1), 1) / (1 << (shift // 2 + 1))
    return encode(value, form, mode)
