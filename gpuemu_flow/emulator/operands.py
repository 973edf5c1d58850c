"""Decode the text of one operand into a typed operand."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from gpuemu_flow.artifacts.ptx.opcode import parse_address, parse_integer, split_operands
from gpuemu_flow.emulator.ir import (
    Immediate,
    Inverted,
    MemoryOperand,
    Operand,
    OperandGroup,
    Register,
    Sink,
    Special,
    Symbol,
    TensorPlace,
)

SPECIAL_REGISTERS = frozenset(
    {
        *(f"{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"),
        *(f"{name}.{axis}" for name in ("clusterid", "nclusterid") for axis in "xyz"),
        *(f"{name}.{axis}" for name in ("cluster_ctaid", "cluster_nctaid") for axis in "xyz"),
        "laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid",
        "cluster_ctarank", "cluster_nctarank", "is_explicit_cluster",
        "lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt",
        "clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi",
        "total_smem_size", "aggr_smem_size", "dynamic_smem_size", "envreg1", "envreg2",
    }
)  # fmt: skip
"""Special registers that the emulator implements (PTX ISA, "Special Registers")."""

Lookup = Callable[[str], "Register | Symbol | None"]

_HEX_FLOAT = re.compile(r"0([fFdD])([0-9a-fA-F]{1,16})\Z", re.ASCII)
_DECIMAL_FLOAT = re.compile(r"[+-]?(\d{1,40}\.\d{0,40}|\.\d{1,40})([eE][+-]?\d{1,4})?\Z", re.ASCII)
_SUM = re.compile(r"([\w$%.]+)\s*\+\s*(-?\w+)\Z", re.ASCII)


def decode_operand(text: str, lookup: Lookup) -> Operand | None:
    """Decode one operand.

    Parameters
    ----------
    text : str
        As written, without the comma.
    lookup : callable
        Returns the register or variable that a name refers to, or None.

    Returns
    -------
    Operand or None
        None for an operand that the emulator does not know.
    """
    text = text.strip()
    if text.startswith("{"):
        return _group(split_operands(text[1:].rstrip().removesuffix("}")), lookup)
    if text.startswith("["):
        return _memory(text, lookup)
    if "|" in text:
        return _group(tuple(part.strip() for part in text.split("|")), lookup)
    if text.startswith("!"):
        found = lookup(text[1:].strip())
        return Inverted(found) if isinstance(found, Register) else None
    return _simple(text, lookup)


def _group(parts: tuple[str, ...], lookup: Lookup) -> OperandGroup | None:
    items = []
    for part in parts:
        item = _simple(part, lookup)
        if item is None:
            return None
        items.append(item)
    return OperandGroup(tuple(items)) if items else None


def _memory(text: str, lookup: Lookup) -> MemoryOperand | TensorPlace | None:
    parts = split_operands(text[1:-1]) if "{" in text and text.endswith("]") else ()
    if len(parts) == 2:
        place, corner = _memory(f"[{parts[0]}]", lookup), decode_operand(parts[1], lookup)
        if isinstance(place, MemoryOperand) and isinstance(corner, OperandGroup):
            return TensorPlace(place, corner.items)
        return None
    address = parse_address(text)
    if address is None or not text.endswith("]"):
        return None
    base = _simple(address.base, lookup)
    if isinstance(base, (Register, Immediate, Symbol)):
        return MemoryOperand(base, address.displacement)
    return None


def _simple(text: str, lookup: Lookup) -> Operand | None:
    if text == "_":
        return Sink()
    if text == "WARP_SZ":
        return Immediate(32)
    if text[:1].isdigit() or text[:1] in "+-.":
        return _number(text)
    found = lookup(text)
    if found is not None:
        return found
    if text.startswith("%") and text[1:] in SPECIAL_REGISTERS:
        return Special(text[1:])
    return _sum(text, lookup)


def _sum(text: str, lookup: Lookup) -> Operand | None:
    match = _SUM.match(text)
    if match is None:
        return None
    found, added = lookup(match.group(1)), parse_integer(match.group(2))
    if not isinstance(found, Symbol) or added is None:
        return None
    return Symbol(found.space, found.offset, found.displacement + added)


def _number(text: str) -> Immediate | None:
    match = _HEX_FLOAT.match(text)
    if match is not None:
        kind = "f32" if match.group(1) in "fF" else "f64"
        bits = int(match.group(2), 16)
        return Immediate(bits & (0xFFFFFFFF if kind == "f32" else 0xFFFFFFFFFFFFFFFF), kind)
    if _DECIMAL_FLOAT.match(text):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], "f64")
    value = parse_integer(text)
    return None if value is None else Immediate(value & 0xFFFFFFFFFFFFFFFF)
