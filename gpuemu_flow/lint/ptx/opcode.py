"""Parts of an opcode: its segments, types and state space, and the operand that it writes."""

from __future__ import annotations

import enum
import re
from functools import cached_property
from typing import NamedTuple

STATE_SPACES = frozenset({"global", "shared", "local", "param", "const", "tex"})

TYPE_BYTES: dict[str, int] = {
    "pred": 1,
    "b8": 1, "u8": 1, "s8": 1, "e4m3": 1, "e5m2": 1,
    "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "e4m3x2": 2, "e5m2x2": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "u16x2": 4, "s16x2": 4,
    "tf32": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "f32x2": 8, "texref": 8, "samplerref": 8, "surfref": 8,
    "b128": 16,
}  # fmt: skip
"""Bytes of one element of a fundamental type (PTX ISA, "Fundamental Types")."""

VECTOR_WIDTHS: dict[str, int] = {"v2": 2, "v4": 4, "v8": 8}

_TERMINATORS = frozenset({"ret", "exit", "trap"})
_BRANCHES = frozenset({"bra", "brx"})

_WITHOUT_DESTINATION = frozenset(
    {
        "st", "stu", "red", "bra", "brx", "ret", "exit", "trap", "brkpt", "membar", "fence",
        "prefetch", "prefetchu", "cp", "stmatrix", "pmevent", "nanosleep", "sust", "sured",
        "discard", "applypriority", "griddepcontrol", "setmaxnreg", "tensormap", "stackrestore",
        "bar", "barrier", "mbarrier", "tcgen05", "multimem", "clusterlaunchcontrol", "wgmma",
    }
)  # fmt: skip

# Families in which some members write a register: base -> second segments that do.
_WRITING_MEMBERS: dict[str, frozenset[str]] = {
    "mbarrier": frozenset(
        {"arrive", "arrive_drop", "test_wait", "try_wait", "pending_count"}
    ),
    "tcgen05": frozenset({"ld"}),
    "multimem": frozenset({"ld_reduce"}),
    "clusterlaunchcontrol": frozenset({"query_cancel"}),
}  # fmt: skip


class Destination(enum.Enum):
    """The use of an opcode's first operand.

    `NONE`: it is only read, or there is none. `WRITES`: it is only written. `READS_AND_WRITES`: it
    is read and written. `CALL`: the opcode is ``call``, whose first operand may be a list of
    results.
    """

    NONE = "none"
    WRITES = "writes"
    READS_AND_WRITES = "reads and writes"
    CALL = "call"


class Opcode:
    """One distinct opcode text, shared by all instructions of a file that have it."""

    __slots__ = (
        "__dict__",
        "base",
        "destination",
        "ends_block",
        "is_branch",
        "is_terminator",
        "segments",
        "text",
    )

    def __init__(self, text: str) -> None:
        self.text = text
        self.segments = tuple(text.split("."))
        self.base = self.segments[0]
        self.destination = _destination(self.segments)
        self.is_branch = self.base in _BRANCHES
        self.is_terminator = self.base in _TERMINATORS
        self.ends_block = self.is_branch or self.is_terminator

    def __repr__(self) -> str:
        return f"Opcode({self.text!r})"

    @property
    def qualifiers(self) -> tuple[str, ...]:
        """Return the segments that are not types, except the first."""
        return tuple(s for s in self.segments[1:] if s not in TYPE_BYTES)

    @cached_property
    def types(self) -> tuple[str, ...]:
        """Return the segments that name fundamental types.

        In ``cvt``, the type of the destination comes first.
        """
        return tuple(s for s in self.segments[1:] if s in TYPE_BYTES)

    @property
    def type(self) -> str:
        """Return the last segment that names a type; empty if there is none."""
        return self.types[-1] if self.types else ""

    @cached_property
    def space(self) -> str:
        """Return the state space of a memory access without its ``::`` suffix; empty if generic."""
        for segment in self.segments[1:]:
            space = segment.partition("::")[0]
            if space in STATE_SPACES:
                return space
        return ""

    @cached_property
    def vector(self) -> int:
        """Return the elements per access: 2, 4 or 8 with ``.v2``, ``.v4``, ``.v8``, else 1."""
        for segment in self.segments[1:]:
            if segment in VECTOR_WIDTHS:
                return VECTOR_WIDTHS[segment]
        return 1

    @property
    def access_bytes(self) -> int:
        """Return the bytes that each thread accesses: the element size times the vector width."""
        return TYPE_BYTES.get(self.type, 0) * self.vector


def _destination(segments: tuple[str, ...]) -> Destination:
    base = segments[0]
    member = segments[1] if len(segments) > 1 else ""
    if base == "call":
        return Destination.CALL
    if base == "wgmma" and member == "mma_async":
        return Destination.READS_AND_WRITES
    if base in ("bar", "barrier"):
        return Destination.WRITES if "red" in segments else Destination.NONE
    if member in _WRITING_MEMBERS.get(base, ()):
        return Destination.WRITES
    return Destination.NONE if base in _WITHOUT_DESTINATION else Destination.WRITES


# Number literals of PTX.


def parse_integer(text: str) -> int | None:
    """Read a PTX integer literal (decimal, ``0x``, ``0b``, octal, optional ``U``), or return None.

    Source: PTX ISA, "Integer Constants".
    """
    digits = text.strip().rstrip("U")
    if not digits or len(digits) > 80:
        return None
    sign = -1 if digits[0] == "-" else 1
    digits = digits.lstrip("+-")
    base = 10
    lower = digits.lower()
    if lower.startswith("0x"):
        base, digits = 16, digits[2:]
    elif lower.startswith("0b"):
        base, digits = 2, digits[2:]
    elif len(digits) > 1 and digits[0] == "0":
        base, digits = 8, digits[1:]
    if not (digits.isascii() and digits.isalnum()):
        return None
    try:
        return sign * int(digits, base)
    except ValueError:
        return None


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
