"""Lane-wise functions of opcodes for logic, shifts, bit fields and selection."""

from __future__ import annotations

from typing import cast

import numpy as np

from gpuemu_flow.emulator.registry import (
    BIT_TYPES,
    INTEGERS,
    ROUNDINGS,
    Lanes,
    OpcodeForm,
    builds,
    only,
)
from gpuemu_flow.emulator.semantics import convert as conversions
from gpuemu_flow.emulator.semantics import convert as small_floats
from gpuemu_flow.emulator.semantics import integers, packed
from gpuemu_flow.emulator.types import DTYPES, Array, is_float, is_signed
from gpuemu_flow.lint.ptx import Opcode

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


_PAIRS = frozenset({"e4m3x2", "e5m2x2"})


def _canonical_half(x: Array) -> Array:
    """Narrow to f16, and replace each NaN by the one bit pattern that the ISA defines."""
    nan = np.array(0x7FFF, np.uint16).view(np.float16)
    return np.where(np.isnan(x), nan, x.astype(np.float16))


def _convert_fp8(to: str, source: str, words: frozenset[str]) -> OpcodeForm | None:
    """Make the form of a conversion from or to a pair of 8-bit floats; None if none exists.

    If a pair is made from two operands, the first operand becomes the upper half.
    """
    if to == "f16x2" and source in _PAIRS:
        kind = source.removesuffix("x2")

        def widen(x: Array) -> Array:
            halves = [(x & np.uint16(255)).astype(np.uint8), (x >> np.uint16(8)).astype(np.uint8)]
            low, high = (_canonical_half(small_floats.unpack_fp8(h, kind)) for h in halves)
            return packed.pack(low, high)

        return OpcodeForm(widen, (source,), to, "cvt") if "relu" not in words else None
    if to not in _PAIRS or "satfinite" not in words:
        return None
    kind, relu = to.removesuffix("x2"), "relu" in words

    def narrow(high: Array, low: Array) -> Array:
        upper = small_floats.pack_fp8(high, kind, relu=relu).astype(np.uint16)
        lower = small_floats.pack_fp8(low, kind, relu=relu).astype(np.uint16)
        return lower | upper << np.uint16(8)

    if source == "f32":
        return OpcodeForm(narrow, ("f32", "f32"), to, "cvt")
    if source != "f16x2":
        return None

    def narrow_pair(x: Array) -> Array:
        return narrow(packed.high(x).view(np.float16), packed.low(x).view(np.float16))

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
    if to in _PAIRS or source in _PAIRS:
        return _convert_fp8(to, source, words)
    if to in ("f16x2", "bf16x2") and source == "f32":
        one = conversions.convert(to.removesuffix("x2"), "f32", mode, ftz=ftz, sat=sat)
        if one is None:
            return None
        if "relu" in words:
            one = packed.relu(one) if to == "f16x2" else packed.bfloat_relu(one)
        scalar = one
        return OpcodeForm(lambda a, b: packed.pack(scalar(b), scalar(a)), ("f32", "f32"), to, "cvt")
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
    return OpcodeForm(made, (source,), to, "cvt")
