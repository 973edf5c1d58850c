"""Parse the texts of operands: split them at top-level commas, and read addresses."""

from __future__ import annotations

import re
from typing import NamedTuple

from gpuemu_flow.artifacts.ptx.numbers import parse_integer

_PIECES = re.compile(r"[,{}()\[\]]|[^,{}()\[\]]+", re.ASCII)
_ADDRESS = re.compile(r"\[\s*([%\w$.]+)\s*(?:\+\s*(-?\w+)\s*)?\]", re.ASCII)
_OPENING = frozenset("{([")
_CLOSING = frozenset("})]")


class Address(NamedTuple):
    """``[base+displacement]``: a register or symbol and a constant number of bytes."""

    base: str
    displacement: int


def split_operands(text: str) -> tuple[str, ...]:
    """Split operands at commas that lie outside of braces, brackets and parentheses."""
    if not ("{" in text or "[" in text or "(" in text):
        stripped = text.strip()
        return tuple(part.strip() for part in stripped.split(",")) if stripped else ()
    operands: list[str] = []
    current: list[str] = []
    depth = 0
    for piece in _PIECES.findall(text):
        if piece in _OPENING:
            depth += 1
        elif piece in _CLOSING:
            depth -= 1
        if piece == "," and depth <= 0:
            operands.append("".join(current).strip())
            current = []
        else:
            current.append(piece)
    last = "".join(current).strip()
    if last:
        operands.append(last)
    return tuple(operands)


def first_operand(text: str) -> str:
    """Return the first of several operands, without splitting the others."""
    stripped = text.lstrip()
    if stripped[:1] in ("{", "(", "["):
        closing = {"{": "}", "(": ")", "[": "]"}[stripped[0]]
        end = stripped.find(closing)
        if end >= 0:
            comma = stripped.find(",", end)  # not the brace: "{a, b}|p" is one operand
            return stripped[: comma if comma >= 0 else len(stripped)].rstrip()
    return stripped.partition(",")[0].rstrip()


def parse_address(text: str) -> Address | None:
    """Return the first ``[base+displacement]`` in `text`, or None if there is none."""
    match = _ADDRESS.search(text)
    if match is None:
        return None
    displacement = parse_integer(match.group(2) or "0")
    return None if displacement is None else Address(match.group(1), displacement)
