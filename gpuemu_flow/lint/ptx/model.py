"""Data types for a PTX file: modules, functions, instructions, scopes, labels and locations."""

from __future__ import annotations

import enum
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct, field

from gpuemu_flow.model.errors import Problem

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
    """The use of an opcode's first operand. `NONE`: it is only read, or there is none. `WRITES`: it
    is only written. `READS_AND_WRITES`: it is read and written. `CALL`: the opcode is ``call``,
    whose first operand may be a list of results."""

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
        return tuple(s for s in self.segments[1:] if s not in TYPE_BYTES)

    @cached_property
    def types(self) -> tuple[str, ...]:
        """Return the segments that name fundamental types. In ``cvt``, the type of the destination
        comes first."""
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
    Source: PTX ISA, "Integer Constants"."""
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


_COMMENT_OR_STRING = re.compile(r'"[^"\n]*"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL | re.ASCII)
_NEWLINE = re.compile("\n", re.ASCII)
_UTF8_BOM = b"\xef\xbb\xbf"
_ELF_MAGIC = b"\x7fELF"
_EXCERPT = 40


class SourceText:
    """Text of one file, with a conversion of offsets to line numbers."""

    __slots__ = ("_newlines", "file", "opcodes", "text")

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.opcodes: dict[str, Opcode] = {}
        self._newlines: array[int] | None = None

    def line_of(self, offset: int) -> int:
        """Return the 1-based line of an offset."""
        if self._newlines is None:
            self._newlines = array("Q", (m.start() for m in _NEWLINE.finditer(self.text)))
        return bisect_left(self._newlines, offset) + 1

    def problem(self, slug: str, message: str, offset: int) -> Problem:
        return Problem(slug, message, "", self.file, self.line_of(offset))

    def excerpt(self, offset: int) -> str:
        line = self.text[offset : offset + _EXCERPT].split("\n", 1)[0].rstrip()
        return line.encode("ascii", "backslashreplace").decode("ascii")


def read_source(data: bytes, file: str) -> SourceText | Problem:
    """Decode a file and blank out its comments; return a problem if it cannot be PTX. Latin-1 maps
    every byte to one character, so no input fails to decode. NUL bytes (PTX embedded in fat
    binaries ends in them) become spaces."""
    if data.startswith(_ELF_MAGIC):
        return Problem("ptx-is-binary", "an ELF file (cubin or object), not PTX text", "", file, 1)
    data = data.removeprefix(_UTF8_BOM)
    if b"\0" in data:
        data = data.replace(b"\0", b" ")
    if not data.strip():
        return Problem("ptx-empty", "the file is empty", "", file, 1)
    text = blank_comments(data.decode("latin-1"))
    if text.isspace():
        return Problem("ptx-empty", "the file holds nothing but comments", "", file, 1)
    return SourceText(text, file)


def blank_comments(text: str) -> str:
    """Replace each comment by its newlines, or by a space if it has none; leave strings alone."""
    if "/" not in text:
        return text
    return _COMMENT_OR_STRING.sub(_blank, text)


def _blank(match: re.Match[str]) -> str:
    found = match.group()
    if found[0] == '"':
        return found
    return "\n" * found.count("\n") or " "


def decode_path(raw: str) -> str:
    return raw.encode("latin-1").decode("utf-8", "replace")


_LOCATION = re.compile(r"\s*(?:\.loc\b|\.file\b|@@DWARF\b)", re.ASCII)
_SECTION = re.compile(r"\s*\.section\b[^\n]*\.debug", re.ASCII)


class PlainPtx(Struct, frozen=True):
    """PTX reduced to its code: equal code gives equal text, wherever in the source it comes from.
    ``lines`` are the 1-based numbers in the file of the lines of ``text``."""

    text: bytes
    lines: tuple[int, ...]

    def number(self, line: int) -> int:
        """Return a line's number in the reduced text, given its number in the file. The result is 0
        if the line was left out."""
        low, high = 0, len(self.lines)
        while low < high:
            middle = (low + high) // 2
            if self.lines[middle] < line:
                low = middle + 1
            else:
                high = middle
        return low + 1 if low < len(self.lines) and self.lines[low] == line else 0

    def line(self, number: int) -> int:
        """Return a line's number in the file, given its number in the reduced text. The result is 0
        if there is no such line."""
        return self.lines[number - 1] if 1 <= number <= len(self.lines) else 0


def plain_ptx(data: bytes) -> PlainPtx:
    """Remove comments, line information and debug sections from PTX."""
    kept, lines = [], []
    inside = False
    for number, line in enumerate(blank_comments(data.decode("latin-1")).split("\n"), 1):
        if inside:
            inside = "}" not in line
        elif _SECTION.match(line):
            inside = True
        elif line.strip() and not _LOCATION.match(line):
            kept.append(" ".join(line.split()))
            lines.append(number)
    return PlainPtx("\n".join(kept).encode("latin-1"), tuple(lines))


class Instruction(NamedTuple):
    """One instruction of a function body."""

    opcode: Opcode
    guard: str | None
    text: str
    offset: int
    scope: int
    location: int

    @property
    def operands(self) -> tuple[str, ...]:
        """Return the operands: `text`, split at commas outside of brackets and braces."""
        return split_operands(self.text)

    @property
    def predicate(self) -> tuple[str, bool] | None:
        """Return the guard's register, and True if it is negated; None for no guard."""
        if self.guard is None:
            return None
        name = self.guard.lstrip("! \t\r\n")
        return name, self.guard[0] == "!"


class SourceLocation(NamedTuple):
    """A ``.loc``: the source line that the following instructions come from. ``inlined_at`` is the
    call site (file index, line, column) of inlined code, or None."""

    file: int
    line: int
    column: int
    inlined_at: tuple[int, int, int] | None = None


class RegisterDeclaration(NamedTuple):
    """One name in a ``.reg`` statement. ``size`` is None for a single register, and N for a range
    ``%r<N>``. ``lanes`` is 2, 4 or 8 for ``.v2``, ``.v4`` or ``.v8``, else 1."""

    name: str
    size: int | None
    type: str
    lanes: int = 1


class Variable(NamedTuple):
    """A variable in a state space. ``size_bytes`` is None when the size is not known at compile
    time (``.extern .shared a[]``)."""

    name: str
    space: str
    type: str
    size_bytes: int | None
    align: int
    external: bool
    offset: int


class Scope(NamedTuple):
    """A ``{ }`` block of a body, with its parent's index; the body is scope 0 with parent -1."""

    parent: int
    registers: list[RegisterDeclaration]


class Body(Struct):
    """Everything between a function's braces."""

    instructions: list[Instruction] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=lambda: [Scope(-1, [])])
    labels: dict[tuple[int, str], int] = field(default_factory=dict)
    locations: list[SourceLocation] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    branch_targets: dict[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def resolve_label(self, name: str, scope: int) -> int | None:
        """Return the index of the instruction after a label; None if it is unknown in `scope`."""
        while scope >= 0:
            found = self.labels.get((scope, name))
            if found is not None:
                return found
            scope = self.scopes[scope].parent
        return None

    def resolve_branch_targets(self, name: str, scope: int) -> tuple[str, ...] | None:
        """Return the labels of a ``.branchtargets`` table; None if it is unknown in `scope`."""
        while scope >= 0:
            found = self.branch_targets.get((scope, name))
            if found is not None:
                return found
            scope = self.scopes[scope].parent
        return None

    @property
    def declared_registers(self) -> int:
        """Return the number of declared virtual registers, not of registers that a GPU needs."""
        return sum(
            1 if declared.size is None else declared.size
            for scope in self.scopes
            for declared in scope.registers
        )

    def location_of(self, instruction: Instruction) -> SourceLocation | None:
        return self.locations[instruction.location] if instruction.location >= 0 else None


class LaunchBounds(Struct, frozen=True):
    """Performance directives of an entry; a directive that is absent gives 0."""

    max_threads: int = 0
    required: bool = False
    min_blocks: int = 0
    max_registers: int = 0
    cluster: int = 0


class Function(Struct):
    """An ``.entry`` or ``.func`` with a body, which `body.read_body` reads on demand. Bodies are
    not kept. If a reader examines one function at a time, its memory use therefore depends on the
    largest function, not on the size of the file."""

    name: str
    kind: str
    header: str
    bounds: LaunchBounds
    module: Module
    offset: int
    body_start: int
    body_end: int
    closed: bool

    @property
    def is_entry(self) -> bool:
        return self.kind == "entry"

    @property
    def line(self) -> int:
        return self.module.source.line_of(self.offset)


class Module(Struct, dict=True):
    """One PTX module: the part of a file from a ``.version`` to the next."""

    source: SourceText
    version: tuple[int, int]
    target: str = ""
    target_options: tuple[str, ...] = ()
    functions: list[Function] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    @cached_property
    def static_shared(self) -> dict[str, Variable]:
        """Return the module's own shared variables (those not declared extern), by name."""
        return {v.name: v for v in self.variables if v.space == "shared" and not v.external}

    def entries(self) -> Iterator[Function]:
        return (f for f in self.functions if f.is_entry)


class PtxFile(Struct):
    """Result of reading one file: its modules, and the problems found in it."""

    source: SourceText
    modules: list[Module] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def functions(self) -> Iterator[Function]:
        return (function for module in self.modules for function in module.functions)

    def entries(self) -> Iterator[Function]:
        return (function for function in self.functions() if function.is_entry)


def element_bytes(type_name: str) -> int:
    """Return the size in bytes of one element of a PTX type; 0 for an unknown type."""
    return TYPE_BYTES.get(type_name, 0)
