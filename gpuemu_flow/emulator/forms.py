"""Lane-wise functions of arithmetic opcodes, integer and floating-point."""

from __future__ import annotations

from functools import cache
from typing import cast

import numpy as np

from gpuemu_flow.emulator.semantics import convert, floats, integers
from gpuemu_flow.emulator.types import (
    BIT_TYPES,
    BUILDERS,
    DTYPES,
    INTEGERS,
    ROUNDINGS,
    Array,
    Lanes,
    OpcodeForm,
    builds,
    is_float,
    is_signed,
    only,
    rounding,
)
from gpuemu_flow.lint.ptx.model import Opcode


def _arithmetic(
    function: Lanes, type_name: str, count: int, words: frozenset[str], section: str
) -> OpcodeForm:
    wrapped = floats.with_flags(function, ftz="ftz" in words, sat="sat" in words)
    return OpcodeForm(wrapped, (type_name,) * count, type_name, section)


def _half(
    base: str, type_name: str, count: int, words: frozenset[str], section: str
) -> OpcodeForm | None:
    """Make the form of an addition, subtraction, multiplication or fma of 16-bit floats. The types
    are f16, bf16, f16x2 and bf16x2. The result is None for modifiers that do not exist."""
    scalar = type_name.removesuffix("x2")
    function: Lanes
    if scalar == "f16":
        table: dict[str, Lanes] = {
            "add": np.add, "sub": np.subtract, "mul": np.multiply, "fma": floats.fma16,
        }  # fmt: skip
        function = table[base]
        function = floats.with_flags(function, ftz="ftz" in words, sat="sat" in words)
        function = convert.relu(function) if "relu" in words else function
        function = convert.twice_f16(function) if type_name == "f16x2" else function
    else:
        wide: dict[str, Lanes] = {
            "add": convert.odd_sum, "sub": lambda a, b: convert.odd_sum(a, -b),
            "mul": np.multiply, "fma": convert.odd_fma,
        }  # fmt: skip
        if words & {"ftz", "sat"}:
            return None
        function = convert.in_bfloat(wide[base])
        function = convert.bfloat_relu(function) if "relu" in words else function
        function = convert.twice_bits(function) if type_name == "bf16x2" else function
    return OpcodeForm(function, (type_name,) * count, type_name, section)


_PAIRS = frozenset({"u16x2", "s16x2"})
_RELU = frozenset({"s32", "s16x2"})
_HALVES = frozenset({"f16", "f16x2", "bf16", "bf16x2"})


@builds("add", "sub", "mul")
def _sum_or_product(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    base = opcode.base
    if len(opcode.types) != 1 or "cc" in words:
        return None
    if type_name in _HALVES:
        flags = words - {type_name}
        if not only(flags, "rn", "ftz", "sat"):
            return None
        return _half(base, type_name, 2, flags, base)
    if type_name in ("f32", "f64"):
        if not only(words, *ROUNDINGS, "ftz", "sat", type_name):
            return None
        factories = {"add": floats.add, "sub": floats.subtract, "mul": floats.multiply}
        function = factories[base](rounding(words), DTYPES[type_name])
        return _arithmetic(function, type_name, 2, words, base)
    if type_name in _PAIRS and base == "add" and only(words, type_name):
        return OpcodeForm(convert.twice_bits(np.add), (type_name,) * 2, type_name, base)
    if type_name not in INTEGERS:
        return None
    if base == "mul":
        return _integer_product(type_name, words)
    if "sat" in words:
        saturating = {"add": integers.add_saturating, "sub": integers.subtract_saturating}
        return (
            OpcodeForm(saturating[base], ("s32", "s32"), "s32", base)
            if type_name == "s32"
            else None
        )
    if not only(words, type_name):
        return None
    return OpcodeForm(np.add if base == "add" else np.subtract, (type_name,) * 2, type_name, base)


def _integer_product(type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    if "wide" in words:
        if type_name.endswith("64"):
            return None
        result = type_name[0] + str(2 * int(type_name[1:]))
        return OpcodeForm(integers.multiply_wide, (type_name,) * 2, result, "mul")
    if "hi" in words:
        return OpcodeForm(integers.multiply_high, (type_name,) * 2, type_name, "mul")
    if "lo" in words:
        return OpcodeForm(np.multiply, (type_name,) * 2, type_name, "mul")
    return None


@builds("fma", "mad")
def _multiply_add(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    if len(opcode.types) != 1 or "cc" in words:
        return None
    if type_name in _HALVES:
        flags = words - {type_name}
        if opcode.base == "mad" or not only(flags, "rn", "ftz", "sat", "relu"):
            return None
        return _half("fma", type_name, 3, flags, "fma")
    if type_name in ("f32", "f64"):
        if not only(words, *ROUNDINGS, "ftz", "sat", type_name):
            return None
        factory = floats.fma32 if type_name == "f32" else floats.fma64
        return _arithmetic(factory(rounding(words)), type_name, 3, words, "fma")
    if opcode.base == "fma" or type_name not in INTEGERS:
        return None
    if "sat" in words:
        good = type_name == "s32" and "hi" in words
        return (
            OpcodeForm(integers.mad_high_saturating, ("s32",) * 3, "s32", "mad") if good else None
        )
    product = _integer_product(type_name, words)
    if product is None:
        return None
    function = integers.mad(product.function)
    return OpcodeForm(function, (type_name, type_name, product.result), product.result, "mad")


@builds("mul24", "mad24")
def _short_product(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    if type_name not in ("u32", "s32") or not only(words, "hi", "lo", type_name):
        return None
    function = integers.multiply24("hi" in words)
    if opcode.base == "mul24":
        return OpcodeForm(function, (type_name,) * 2, type_name, "mul24")
    return OpcodeForm(integers.mad(function), (type_name,) * 3, type_name, "mad24")


@builds("sad")
def _sad(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    if type_name not in INTEGERS:
        return None
    return OpcodeForm(integers.absolute_difference_sum, (type_name,) * 3, type_name, "sad")


@builds("div")
def _quotient(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    if type_name in INTEGERS and only(words, type_name):
        return OpcodeForm(integers.divide, (type_name,) * 2, type_name, "div")
    if type_name not in ("f32", "f64"):
        return None
    if words & {"approx", "full"}:
        return _arithmetic(np.divide, type_name, 2, words, "div")
    function = floats.divide(rounding(words), DTYPES[type_name])
    return _arithmetic(function, type_name, 2, words, "div")


@builds("rem")
def _remainder(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    if type_name not in INTEGERS:
        return None
    return OpcodeForm(integers.remainder, (type_name,) * 2, type_name, "rem")


@builds("neg", "abs")
def _sign(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    flip = opcode.base == "neg"
    if type_name in ("f32", "f64", "f16"):
        function: Lanes = np.negative if flip else np.abs
        if "ftz" in words:
            inner = function
            function = lambda a: inner(floats.flush(a))  # noqa: E731
        return OpcodeForm(function, (type_name,), type_name, opcode.base)
    masks = {"bf16": 0x8000, "f16x2": 0x80008000, "bf16x2": 0x80008000}
    if type_name in masks:
        kind = np.dtype(DTYPES[type_name]).type
        mask = kind(masks[type_name])
        bits: Lanes = (lambda a: a ^ mask) if flip else (lambda a: a & ~mask)
        return OpcodeForm(bits, (type_name,), type_name, opcode.base)
    if type_name not in ("s16", "s32", "s64"):
        return None
    return OpcodeForm(integers.negate if flip else np.abs, (type_name,), type_name, opcode.base)


@builds("min", "max")
def _extreme(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    least = opcode.base == "min"
    if type_name in INTEGERS | _PAIRS:
        if not only(words, "relu", type_name) or ("relu" in words and type_name not in _RELU):
            return None
        choose: Lanes = np.minimum if least else np.maximum
        if "relu" in words:
            chosen = choose
            choose = lambda a, b: np.maximum(chosen(a, b), a.dtype.type(0))  # noqa: E731
        if type_name in _PAIRS:
            choose = convert.twice_integers(choose, DTYPES[type_name.removesuffix("x2")])
        return OpcodeForm(choose, (type_name,) * 2, type_name, opcode.base)
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
        function = lambda *xs: convert.f32_to_bfloat(  # noqa: E731
            on_floats(*map(convert.bfloat_to_f32, xs))
        )
        function = convert.twice_bits(function) if type_name == "bf16x2" else function
    elif type_name == "f16x2":
        function = convert.twice_f16(function)
    return OpcodeForm(function, (type_name,) * 2, type_name, opcode.base)


_APPROXIMATE: dict[str, Lanes] = {
    "rcp": lambda x: 1 / x, "sqrt": np.sqrt, "rsqrt": floats.reciprocal_root, "sin": np.sin,
    "cos": np.cos, "lg2": np.log2, "ex2": np.exp2, "tanh": np.tanh,
}  # fmt: skip


@builds("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh")
def _function(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    base = opcode.base
    function = _APPROXIMATE[base]
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
        return _arithmetic(function, "f64", 1, frozenset(), base)
    return _arithmetic(floats.through64(function), "f32", 1, words, base)


def _half_function(base: str, type_name: str, function: Lanes) -> OpcodeForm | None:
    if base not in ("ex2", "tanh"):
        return None
    made: Lanes
    if type_name.startswith("f16"):
        made = lambda x: floats.canonical(  # noqa: E731
            function(x.astype(np.float64)).astype(np.float16)
        )
        made = convert.twice_f16(made) if type_name == "f16x2" else made
    else:
        made = convert.in_bfloat(function)
        made = convert.twice_bits(made) if type_name == "bf16x2" else made
    return OpcodeForm(made, (type_name,), type_name, base)


@builds("copysign")
def _copysign(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    if type_name not in ("f32", "f64"):
        return None
    return OpcodeForm(floats.copy_sign, (type_name,) * 2, type_name, "copysign")


@builds("testp")
def _testp(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    if type_name not in ("f32", "f64") or len(opcode.segments) != 3:
        return None
    names = {"finite", "infinite", "number", "notanumber", "normal", "subnormal"}
    if opcode.segments[1] not in names:
        return None
    return OpcodeForm(floats.test_property(opcode.segments[1]), (type_name,), "pred", "testp")


# Find the function that computes a lane-wise opcode.


def find_form(opcode: Opcode) -> OpcodeForm | None:
    """Return the `OpcodeForm` of a lane-wise opcode: its function and the types of its operands."""
    return _find(opcode.text)


def lane_wise_bases() -> tuple[str, ...]:
    return tuple(sorted(BUILDERS))


_ROUNDED = frozenset(ROUNDINGS)
_APPROXIMATE_FORMS = frozenset({"approx", "ftz"})
MODIFIERS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("rsqrt", "sin", "cos", "lg2", "ex2", "tanh"), _APPROXIMATE_FORMS),
    **dict.fromkeys(("rcp", "sqrt"), _ROUNDED | _APPROXIMATE_FORMS),
    **dict.fromkeys(("min", "max"), frozenset({"ftz", "NaN", "relu"})),
    **dict.fromkeys(("neg", "abs", "slct"), frozenset({"ftz"})),
    **dict.fromkeys(("bmsk", "szext"), frozenset({"wrap", "clamp"})),
    "div": _ROUNDED | _APPROXIMATE_FORMS | {"full"},
    "shf": frozenset({"l", "r", "wrap", "clamp"}),
    "dp2a": frozenset({"lo", "hi"}),
    "bfind": frozenset({"shiftamt"}),
    **dict.fromkeys(("vabsdiff2", "vabsdiff4"), frozenset({"add"})),
    **dict.fromkeys(
        ("fns", "rem", "sad", "copysign", "popc", "clz", "brev", "bfe", "bfi", "shl", "shr", "lop3",
         "dp4a", "selp"),
        frozenset(),
    ),
}  # fmt: skip
"""Words besides types that an instruction may have. The builder of an instruction that is not
listed here checks the words itself."""


@cache
def _find(text: str) -> OpcodeForm | None:
    opcode = Opcode(text)
    builder = BUILDERS.get(opcode.base)
    if builder is None:
        return None
    allowed = MODIFIERS.get(opcode.base)
    if allowed is not None and not set(opcode.qualifiers) <= allowed:
        return None
    return builder(opcode, opcode.type, frozenset(opcode.segments[1:]))


# Lane-wise functions of opcodes for logic, shifts, bit fields and selection.


_LOGIC: dict[str, Lanes] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@builds("and", "or", "xor", "not", "cnot")
def _logic(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    if type_name not in {*BIT_TYPES, "pred"} or not only(words, type_name):
        return None
    if opcode.base == "not":
        return OpcodeForm(np.invert, (type_name,), type_name, "not")
    if opcode.base == "cnot":
        return OpcodeForm(lambda a: (a == 0).astype(a.dtype), (type_name,), type_name, "cnot")
    return OpcodeForm(_LOGIC[opcode.base], (type_name,) * 2, type_name, opcode.base)


@builds("shl", "shr")
def _shift(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    if type_name not in BIT_TYPES | INTEGERS:
        return None
    function = integers.shift_left if opcode.base == "shl" else integers.shift_right
    return OpcodeForm(function, (type_name, "u32"), type_name, opcode.base)


@builds("shf")
def _funnel(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    if type_name != "b32" or not words & {"l", "r"} or not words & {"wrap", "clamp"}:
        return None
    factory = integers.funnel_left if "l" in words else integers.funnel_right
    return OpcodeForm(factory("wrap" in words), ("b32", "b32", "u32"), "b32", "shf")


@builds("popc", "clz", "brev", "bfind")
def _bit_count(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    if type_name not in {"b32", "b64", "u32", "u64", "s32", "s64"}:
        return None
    if opcode.base == "bfind":
        function = integers.find_bit(is_signed(type_name), "shiftamt" in words)
        return OpcodeForm(function, (type_name,), "u32", "bfind")
    if opcode.base == "brev":
        return OpcodeForm(integers.reverse_bits, (type_name,), type_name, "brev")
    function = integers.population if opcode.base == "popc" else integers.leading_zeros
    return OpcodeForm(function, (type_name,), "u32", opcode.base)


@builds("fns")
def _nth_set(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    if type_name != "b32":
        return None
    return OpcodeForm(integers.find_nth_set, ("b32", "u32", "s32"), "b32", "fns")


@builds("vabsdiff2", "vabsdiff4")
def _differences(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    types, sums = opcode.types, "add" in words
    if len(types) != 3 or not set(types) <= {"u32", "s32"} or types[1] != types[2]:
        return None
    if not only(words, "add", *types):
        return None
    function = integers.absolute_differences(is_signed(types[1]), int(opcode.base[-1]), sums)
    return OpcodeForm(function, ("b32", "b32", "b32"), "b32", opcode.base)


@builds("bfe", "bfi", "bmsk", "szext")
def _field(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    base = opcode.base
    if type_name not in BIT_TYPES | INTEGERS or type_name.endswith("16"):
        return None
    if base == "bfe":
        return OpcodeForm(integers.extract_field, (type_name, "u32", "u32"), type_name, base)
    if base == "bfi":
        return OpcodeForm(integers.insert_field, (type_name,) * 2 + ("u32", "u32"), type_name, base)
    if not words & {"wrap", "clamp"} or type_name.endswith("64"):
        return None
    factory = integers.bit_mask if base == "bmsk" else integers.sign_extend
    return OpcodeForm(factory("wrap" in words), (type_name, "u32"), type_name, base)


@builds("lop3")
def _lop3(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    if type_name != "b32" or len(opcode.segments) != 2:
        return None
    make = cast("Lanes", integers.lookup3)  # with `table` it makes the function
    return OpcodeForm(make, ("b32",) * 3, "b32", "lop3", table=True)


@builds("prmt")
def _prmt(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    if type_name != "b32":
        return None
    mode = opcode.segments[2] if len(opcode.segments) > 2 else ""
    if mode not in ("", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        return None
    return OpcodeForm(integers.permute(mode), ("b32", "b32", "b32"), "b32", "prmt")


@builds("dp4a", "dp2a")
def _dot(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    types = opcode.types
    if len(types) != 2 or any(t not in ("u32", "s32") for t in types):
        return None
    result = "s32" if "s32" in types else "u32"
    lanes = 4 if opcode.base == "dp4a" else 2
    function = integers.dot_product(
        is_signed(types[0]), is_signed(types[1]), lanes, high="hi" in words
    )
    made = lambda a, b, c: function(a, b, c).view(DTYPES[result])  # noqa: E731
    return OpcodeForm(made, ("b32", "b32", result), result, opcode.base)


def _select(a: Array, b: Array, p: Array) -> Array:
    return np.where(p, a, b)


def _select_by_sign(a: Array, b: Array, c: Array) -> Array:
    return np.where(c >= 0, a, b)


@builds("selp")
def _selp(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    if type_name not in DTYPES or not only(words, type_name):
        return None
    return OpcodeForm(_select, (type_name, type_name, "pred"), type_name, "selp")


@builds("slct")
def _slct(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    types = opcode.types
    if len(types) != 2 or types[1] not in ("s32", "f32"):
        return None
    return OpcodeForm(_select_by_sign, (types[0], types[0], types[1]), types[0], "slct")


# Lane-wise functions of conversions: cvt.


_SMALL_PAIRS = frozenset({"e4m3x2", "e5m2x2"})


def _canonical_half(x: Array) -> Array:
    """Narrow to f16, and replace each NaN by the one bit pattern that the ISA defines."""
    nan = np.array(0x7FFF, np.uint16).view(np.float16)
    return np.where(np.isnan(x), nan, x.astype(np.float16))


def _convert_fp8(to: str, source: str, words: frozenset[str]) -> OpcodeForm | None:
    """Make the form of a conversion from or to a pair of 8-bit floats; None if none exists. If a
    pair is made from two operands, the first operand becomes the upper half."""
    if to == "f16x2" and source in _SMALL_PAIRS:
        kind = source.removesuffix("x2")

        def widen(x: Array) -> Array:
            halves = [(x & np.uint16(255)).astype(np.uint8), (x >> np.uint16(8)).astype(np.uint8)]
            low, high = (_canonical_half(convert.unpack_fp8(h, kind)) for h in halves)
            return convert.pack(low, high)

        return OpcodeForm(widen, (source,), to, "cvt") if "relu" not in words else None
    if to not in _SMALL_PAIRS or "satfinite" not in words:
        return None
    kind, relu = to.removesuffix("x2"), "relu" in words

    def narrow(high: Array, low: Array) -> Array:
        upper = convert.pack_fp8(high, kind, relu=relu).astype(np.uint16)
        lower = convert.pack_fp8(low, kind, relu=relu).astype(np.uint16)
        return lower | upper << np.uint16(8)

    if source == "f32":
        return OpcodeForm(narrow, ("f32", "f32"), to, "cvt")
    if source != "f16x2":
        return None

    def narrow_pair(x: Array) -> Array:
        return narrow(convert.high(x).view(np.float16), convert.low(x).view(np.float16))

    return OpcodeForm(narrow_pair, ("f16x2",), to, "cvt")


@builds("cvt")
def _cvt(opcode: Opcode, type_name: str, words: frozenset[str]) -> OpcodeForm | None:
    types = opcode.types
    mode = next((m for m in (*ROUNDINGS, "rni", "rzi", "rmi", "rpi", "rna") if m in words), "")
    ftz, sat = "ftz" in words, "sat" in words
    known = {*ROUNDINGS, "rni", "rzi", "rmi", "rpi", "rna", "ftz", "sat", "relu", "satfinite"}
    known.update(types)
    if len(types) != 2 or not words <= known:
        return None
    to, source = types
    if to in _SMALL_PAIRS or source in _SMALL_PAIRS:
        return _convert_fp8(to, source, words)
    if to in ("f16x2", "bf16x2") and source == "f32":
        one = convert.convert(to.removesuffix("x2"), "f32", mode, ftz=ftz, sat=sat)
        if one is None:
            return None
        if "relu" in words:
            one = convert.relu(one) if to == "f16x2" else convert.bfloat_relu(one)
        scalar = one
        return OpcodeForm(
            lambda a, b: convert.pack(scalar(b), scalar(a)), ("f32", "f32"), to, "cvt"
        )
    if not is_float(source) and not is_float(to) and "bf16" not in (to, source) and mode:
        return None
    made = convert.convert(to, source, mode, ftz=ftz, sat=sat)
    if made is None:
        return None
    if "relu" in words:
        if to == "f16":
            made = convert.relu(made)
        elif to == "bf16":
            made = convert.bfloat_relu(made)
        else:
            return None
    return OpcodeForm(made, (source,), to, "cvt")
