"""Which function each lane-wise opcode is: types of what it reads and writes, and the ISA section.

What is not lane-wise (memory, warp operations, barriers, matrices) stands in `effects`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from gpuemu_flow.artifacts.ptx import Opcode
from gpuemu_flow.emulator.semantics import convert as conversions
from gpuemu_flow.emulator.semantics import floats, integers, packed
from gpuemu_flow.emulator.types import DTYPES, Array, is_float, is_signed

Lanes = Callable[..., Array]


@dataclass(frozen=True)
class Form:
    """One opcode ready to be called.

    Attributes
    ----------
    function : callable
        From arrays of the source types to an array of the result type.
    sources : tuple of str
        PTX types of the operands after the first.
    result : str
        PTX type of the first operand.
    section : str
        Title of the section of the PTX ISA that says what it does.
    table : bool
        Whether the last operand is a constant that `function` takes to make the function.
    approximate : float
        Largest relative error that the ISA allows, 0 for exact instructions.
    """

    function: Lanes
    sources: tuple[str, ...]
    result: str
    section: str
    table: bool = False
    approximate: float = 0.0


Builder = Callable[[Opcode, str, frozenset[str]], "Form | None"]

_BUILDERS: dict[str, Builder] = {}
_ROUNDINGS = ("rn", "rz", "rm", "rp")
_INTEGERS = frozenset(
    f"{kind}{bits}" for kind in "us" for bits in (16, 32, 64)
)  # fmt: skip
_BITS = frozenset({"b16", "b32", "b64"})


def _builds(*bases: str) -> Callable[[Builder], Builder]:
    def register(builder: Builder) -> Builder:
        for base in bases:
            _BUILDERS[base] = builder
        return builder

    return register


def find_form(opcode: Opcode) -> Form | None:
    """Find what a lane-wise opcode does.

    Returns
    -------
    Form or None
        None for an opcode that is not lane-wise, or not known.
    """
    return _find(opcode.text)


def lane_wise_bases() -> tuple[str, ...]:
    """List the base names that have lane-wise forms."""
    return tuple(sorted(_BUILDERS))


@cache
def _find(text: str) -> Form | None:
    opcode = Opcode(text)
    builder = _BUILDERS.get(opcode.base)
    if builder is None:
        return None
    return builder(opcode, opcode.type, frozenset(opcode.segments[1:]))


def rounding(words: frozenset[str], default: str = "rn") -> str:
    """Take the rounding mode that an opcode names."""
    return next((mode for mode in _ROUNDINGS if mode in words), default)


def _only(words: frozenset[str], *allowed: str) -> bool:
    return words <= frozenset(allowed)


def _arithmetic(
    function: Lanes, type_name: str, count: int, words: frozenset[str], section: str
) -> Form:
    wrapped = floats.with_flags(function, ftz="ftz" in words, sat="sat" in words)
    return Form(wrapped, (type_name,) * count, type_name, section)


def _half(
    base: str, type_name: str, count: int, words: frozenset[str], section: str
) -> Form | None:
    """Build f16, bf16, f16x2 and bf16x2 arithmetic from one table."""
    scalar = type_name.removesuffix("x2")
    function: Lanes
    if scalar == "f16":
        table: dict[str, Lanes] = {
            "add": np.add, "sub": np.subtract, "mul": np.multiply, "fma": floats.fma16,
        }  # fmt: skip
        function = table[base]
        function = floats.with_flags(function, ftz="ftz" in words, sat="sat" in words)
        function = packed.relu(function) if "relu" in words else function
        function = packed.twice_f16(function) if type_name == "f16x2" else function
    else:
        wide: dict[str, Lanes] = {
            "add": packed.odd_sum, "sub": lambda a, b: packed.odd_sum(a, -b),
            "mul": np.multiply, "fma": packed.odd_fma,
        }  # fmt: skip
        if words & {"ftz", "sat"}:
            return None
        function = packed.in_bfloat(wide[base])
        function = packed.bfloat_relu(function) if "relu" in words else function
        function = packed.twice_bits(function) if type_name == "bf16x2" else function
    return Form(function, (type_name,) * count, type_name, section)


_HALVES = frozenset({"f16", "f16x2", "bf16", "bf16x2"})


@_builds("add", "sub", "mul")
def _sum_or_product(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    base = opcode.base
    if len(opcode.types) != 1 or "cc" in words:
        return None
    if type_name in _HALVES:
        flags = words - {type_name}
        if not _only(flags, "rn", "ftz", "sat"):
            return None
        return _half(base, type_name, 2, flags, base)
    if type_name in ("f32", "f64"):
        if not _only(words, *_ROUNDINGS, "ftz", "sat", type_name):
            return None
        makers = {"add": floats.add, "sub": floats.subtract, "mul": floats.multiply}
        function = makers[base](rounding(words), DTYPES[type_name])
        return _arithmetic(function, type_name, 2, words, base)
    if type_name not in _INTEGERS:
        return None
    if base == "mul":
        return _integer_product(type_name, words)
    if "sat" in words:
        saturating = {"add": integers.add_saturating, "sub": integers.subtract_saturating}
        return Form(saturating[base], ("s32", "s32"), "s32", base) if type_name == "s32" else None
    if not _only(words, type_name):
        return None
    return Form(np.add if base == "add" else np.subtract, (type_name,) * 2, type_name, base)


def _integer_product(type_name: str, words: frozenset[str]) -> Form | None:
    if "wide" in words:
        if type_name.endswith("64"):
            return None
        result = type_name[0] + str(2 * int(type_name[1:]))
        return Form(integers.multiply_wide, (type_name,) * 2, result, "mul")
    if "hi" in words:
        return Form(integers.multiply_high, (type_name,) * 2, type_name, "mul")
    if "lo" in words:
        return Form(np.multiply, (type_name,) * 2, type_name, "mul")
    return None


@_builds("fma", "mad")
def _multiply_add(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    if len(opcode.types) != 1 or "cc" in words:
        return None
    if type_name in _HALVES:
        flags = words - {type_name}
        if opcode.base == "mad" or not _only(flags, "rn", "ftz", "sat", "relu"):
            return None
        return _half("fma", type_name, 3, flags, "fma")
    if type_name in ("f32", "f64"):
        if not _only(words, *_ROUNDINGS, "ftz", "sat", type_name):
            return None
        maker = floats.fma32 if type_name == "f32" else floats.fma64
        return _arithmetic(maker(rounding(words)), type_name, 3, words, "fma")
    if opcode.base == "fma" or type_name not in _INTEGERS:
        return None
    if "sat" in words:
        good = type_name == "s32" and "hi" in words
        return Form(integers.mad_high_saturating, ("s32",) * 3, "s32", "mad") if good else None
    product = _integer_product(type_name, words)
    if product is None:
        return None
    function = integers.mad(product.function)
    return Form(function, (type_name, type_name, product.result), product.result, "mad")


@_builds("mul24", "mad24")
def _short_product(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    if type_name not in ("u32", "s32") or not _only(words, "hi", "lo", type_name):
        return None
    function = integers.multiply24("hi" in words)
    if opcode.base == "mul24":
        return Form(function, (type_name,) * 2, type_name, "mul24")
    return Form(integers.mad(function), (type_name,) * 3, type_name, "mad24")


@_builds("sad")
def _sad(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    if type_name not in _INTEGERS:
        return None
    return Form(integers.absolute_difference_sum, (type_name,) * 3, type_name, "sad")


@_builds("div")
def _quotient(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    if type_name in _INTEGERS and _only(words, type_name):
        return Form(integers.divide, (type_name,) * 2, type_name, "div")
    if type_name not in ("f32", "f64"):
        return None
    if words & {"approx", "full"}:
        form = _arithmetic(np.divide, type_name, 2, words, "div")
        return Form(form.function, form.sources, type_name, "div", approximate=2.0**-22)
    function = floats.divide(rounding(words), DTYPES[type_name])
    return _arithmetic(function, type_name, 2, words, "div")


@_builds("rem")
def _remainder(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    if type_name not in _INTEGERS:
        return None
    return Form(integers.remainder, (type_name,) * 2, type_name, "rem")


@_builds("neg", "abs")
def _sign(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    flip = opcode.base == "neg"
    if type_name in ("f32", "f64", "f16"):
        function: Lanes = np.negative if flip else np.abs
        if "ftz" in words:
            inner = function
            function = lambda a: inner(floats.flush(a))  # noqa: E731
        return Form(function, (type_name,), type_name, opcode.base)
    masks = {"bf16": 0x8000, "f16x2": 0x80008000, "bf16x2": 0x80008000}
    if type_name in masks:
        kind = np.dtype(DTYPES[type_name]).type
        mask = kind(masks[type_name])
        bits: Lanes = (lambda a: a ^ mask) if flip else (lambda a: a & ~mask)
        return Form(bits, (type_name,), type_name, opcode.base)
    if type_name not in ("s16", "s32", "s64"):
        return None
    return Form(integers.negate if flip else np.abs, (type_name,), type_name, opcode.base)


@_builds("min", "max")
def _extreme(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    least = opcode.base == "min"
    if type_name in _INTEGERS:
        if "relu" in words:
            return None
        return Form(np.minimum if least else np.maximum, (type_name,) * 2, type_name, opcode.base)
    if words & {"xorsign", "relu"} or type_name not in {*_HALVES, "f32", "f64"}:
        return None
    if "NaN" in words:
        function: Lanes = floats.minimum_nan if least else floats.maximum_nan
    else:
        function = floats.minimum if least else floats.maximum
    if "ftz" in words:
        inner = function
        function = lambda *xs: inner(*map(floats.flush, xs))  # noqa: E731
    plain = function
    function = lambda *xs: floats.canonical(plain(*xs))  # noqa: E731
    if type_name.startswith("bf16"):
        on_floats = function
        function = lambda *xs: conversions.f32_to_bfloat(  # noqa: E731
            on_floats(*map(conversions.bfloat_to_f32, xs))
        )
        function = packed.twice_bits(function) if type_name == "bf16x2" else function
    elif type_name == "f16x2":
        function = packed.twice_f16(function)
    return Form(function, (type_name,) * 2, type_name, opcode.base)


_APPROXIMATE: dict[str, tuple[Lanes, float]] = {
    "rcp": (lambda x: 1 / x, 2.0**-23),
    "sqrt": (np.sqrt, 2.0**-23),
    "rsqrt": (floats.reciprocal_root, 2.0**-22.9),
    "sin": (np.sin, 2.0**-20.9),
    "cos": (np.cos, 2.0**-20.9),
    "lg2": (np.log2, 2.0**-22),
    "ex2": (np.exp2, 2.0**-22),
    "tanh": (np.tanh, 2.0**-11),
}
"""Function and largest error of the approximate instructions (PTX ISA, each one's section)."""


@_builds("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh")
def _function(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    base = opcode.base
    function, error = _APPROXIMATE[base]
    if type_name in ("f16", "f16x2", "bf16", "bf16x2"):
        return _half_function(base, type_name, function)
    if type_name not in ("f32", "f64"):
        return None
    exact = not words & {"approx"}
    if base in ("rcp", "sqrt") and exact:
        mode, dtype = rounding(words), DTYPES[type_name]
        if base == "sqrt":
            made = floats.square_root(mode, dtype)
        else:
            quotient = floats.divide(mode, dtype)
            made = lambda x: quotient(np.ones((1, 1), x.dtype), x)  # noqa: E731
        return _arithmetic(made, type_name, 1, words, base)
    if type_name == "f64":
        form = _arithmetic(function, "f64", 1, frozenset(), base)
        return Form(form.function, ("f64",), "f64", base, approximate=error)
    form = _arithmetic(floats.through64(function), "f32", 1, words, base)
    return Form(form.function, ("f32",), "f32", base, approximate=error)


def _half_function(base: str, type_name: str, function: Lanes) -> Form | None:
    if base not in ("ex2", "tanh"):
        return None
    made: Lanes
    if type_name.startswith("f16"):
        made = lambda x: floats.canonical(  # noqa: E731
            function(x.astype(np.float64)).astype(np.float16)
        )
        made = packed.twice_f16(made) if type_name == "f16x2" else made
    else:
        made = packed.in_bfloat(function)
        made = packed.twice_bits(made) if type_name == "bf16x2" else made
    return Form(made, (type_name,), type_name, base, approximate=2.0**-9.9)


@_builds("copysign")
def _copysign(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    if type_name not in ("f32", "f64"):
        return None
    return Form(floats.copy_sign, (type_name,) * 2, type_name, "copysign")


@_builds("testp")
def _testp(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    if type_name not in ("f32", "f64") or len(opcode.segments) != 3:
        return None
    names = {"finite", "infinite", "number", "notanumber", "normal", "subnormal"}
    if opcode.segments[1] not in names:
        return None
    return Form(floats.test_property(opcode.segments[1]), (type_name,), "pred", "testp")


_LOGIC: dict[str, Lanes] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@_builds("and", "or", "xor", "not", "cnot")
def _logic(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    if type_name not in {*_BITS, "pred"} or not _only(words, type_name):
        return None
    if opcode.base == "not":
        return Form(np.invert, (type_name,), type_name, "not")
    if opcode.base == "cnot":
        return Form(lambda a: (a == 0).astype(a.dtype), (type_name,), type_name, "cnot")
    return Form(_LOGIC[opcode.base], (type_name,) * 2, type_name, opcode.base)


@_builds("shl", "shr")
def _shift(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    if type_name not in _BITS | _INTEGERS:
        return None
    function = integers.shift_left if opcode.base == "shl" else integers.shift_right
    return Form(function, (type_name, "u32"), type_name, opcode.base)


@_builds("shf")
def _funnel(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    if type_name != "b32" or not words & {"l", "r"} or not words & {"wrap", "clamp"}:
        return None
    maker = integers.funnel_left if "l" in words else integers.funnel_right
    return Form(maker("wrap" in words), ("b32", "b32", "u32"), "b32", "shf")


@_builds("popc", "clz", "brev", "bfind")
def _bit_count(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    if type_name not in {"b32", "b64", "u32", "u64", "s32", "s64"}:
        return None
    if opcode.base == "bfind":
        function = integers.find_bit(is_signed(type_name), "shiftamt" in words)
        return Form(function, (type_name,), "u32", "bfind")
    if opcode.base == "brev":
        return Form(integers.reverse_bits, (type_name,), type_name, "brev")
    function = integers.population if opcode.base == "popc" else integers.leading_zeros
    return Form(function, (type_name,), "u32", opcode.base)


@_builds("bfe", "bfi", "bmsk", "szext")
def _field(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    base = opcode.base
    if type_name not in _BITS | _INTEGERS or type_name.endswith("16"):
        return None
    if base == "bfe":
        return Form(integers.extract_field, (type_name, "u32", "u32"), type_name, base)
    if base == "bfi":
        return Form(integers.insert_field, (type_name,) * 2 + ("u32", "u32"), type_name, base)
    if not words & {"wrap", "clamp"} or type_name.endswith("64"):
        return None
    maker = integers.bit_mask if base == "bmsk" else integers.sign_extend
    return Form(maker("wrap" in words), (type_name, "u32"), type_name, base)


@_builds("lop3")
def _lop3(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    if type_name != "b32" or len(opcode.segments) != 2:
        return None
    return Form(integers.lookup3, ("b32",) * 3, "b32", "lop3", table=True)  # type: ignore[arg-type]


@_builds("prmt")
def _prmt(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    if type_name != "b32":
        return None
    mode = opcode.segments[2] if len(opcode.segments) > 2 else ""
    if mode not in ("", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        return None
    return Form(integers.permute(mode), ("b32", "b32", "b32"), "b32", "prmt")


@_builds("dp4a", "dp2a")
def _dot(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    types = opcode.types
    if len(types) != 2 or any(t not in ("u32", "s32") for t in types):
        return None
    result = "s32" if "s32" in types else "u32"
    lanes = 4 if opcode.base == "dp4a" else 2
    function = integers.dot_product(
        is_signed(types[0]), is_signed(types[1]), lanes, high="hi" in words
    )
    made = lambda a, b, c: function(a, b, c).view(DTYPES[result])  # noqa: E731
    return Form(made, ("b32", "b32", result), result, opcode.base)


@_builds("cvt")
def _cvt(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    types = opcode.types
    mode = next((m for m in (*_ROUNDINGS, "rni", "rzi", "rmi", "rpi", "rna") if m in words), "")
    ftz, sat = "ftz" in words, "sat" in words
    known = {*_ROUNDINGS, "rni", "rzi", "rmi", "rpi", "rna", "ftz", "sat", "relu", *types}
    if len(types) != 2 or not words <= known:
        return None
    to, source = types
    if to in ("f16x2", "bf16x2") and source == "f32":
        one = conversions.convert(to.removesuffix("x2"), "f32", mode, ftz=ftz, sat=sat)
        if one is None:
            return None
        if "relu" in words:
            one = packed.relu(one) if to == "f16x2" else packed.bfloat_relu(one)
        scalar = one
        return Form(lambda a, b: packed.pack(scalar(b), scalar(a)), ("f32", "f32"), to, "cvt")
    if not is_float(source) and not is_float(to) and "bf16" not in (to, source) and mode:
        return None
    made = conversions.convert(to, source, mode, ftz=ftz, sat=sat)
    if made is None:
        return None
    if "relu" in words:
        if to == "f16":
            made = packed.relu(made)
        elif to == "bf16":
            made = packed.bfloat_relu(made)
        else:
            return None
    return Form(made, (source,), to, "cvt")


def _select(a: Array, b: Array, p: Array) -> Array:
    return np.where(p, a, b)


def _select_by_sign(a: Array, b: Array, c: Array) -> Array:
    return np.where(c >= 0, a, b)


@_builds("selp")
def _selp(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    if type_name not in DTYPES or not _only(words, type_name):
        return None
    return Form(_select, (type_name, type_name, "pred"), type_name, "selp")


@_builds("slct")
def _slct(opcode: Opcode, type_name: str, words: frozenset[str]) -> Form | None:
    types = opcode.types
    if len(types) != 2 or types[1] not in ("s32", "f32"):
        return None
    return Form(_select_by_sign, (types[0], types[0], types[1]), types[0], "slct")
