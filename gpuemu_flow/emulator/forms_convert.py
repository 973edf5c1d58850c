"""Lane-wise functions of conversions: cvt."""

from __future__ import annotations

import numpy as np

from gpuemu_flow.artifacts.ptx import Opcode
from gpuemu_flow.emulator.registry import (
    ROUNDINGS,
    OpcodeForm,
    builds,
)
from gpuemu_flow.emulator.semantics import convert as conversions
from gpuemu_flow.emulator.semantics import packed, small_floats
from gpuemu_flow.emulator.types import Array, is_float

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
