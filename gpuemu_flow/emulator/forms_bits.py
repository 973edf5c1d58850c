"""Lane-wise functions of opcodes for logic, shifts, bit fields and selection."""

from __future__ import annotations

from typing import cast

import numpy as np

from gpuemu_flow.artifacts.ptx import Opcode
from gpuemu_flow.emulator.registry import (
    BIT_TYPES,
    INTEGERS,
    Lanes,
    OpcodeForm,
    builds,
    only,
)
from gpuemu_flow.emulator.semantics import integers
from gpuemu_flow.emulator.types import DTYPES, Array, is_signed

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
