"""Data types for a PTX file: modules, functions, instructions, scopes, labels and locations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field

from gpuemu_flow.lint.ptx.opcode import TYPE_BYTES, Opcode, split_operands

if TYPE_CHECKING:
    from gpuemu_flow.lint.ptx.source import SourceText
    from gpuemu_flow.model.errors import Problem


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
    """A ``.loc``: the source line that the following instructions come from.

    ``inlined_at`` is the call site (file index, line, column) of inlined code, or None.
    """

    file: int
    line: int
    column: int
    inlined_at: tuple[int, int, int] | None = None


class RegisterDeclaration(NamedTuple):
    """One name in a ``.reg`` statement.

    ``size`` is None for a single register, and N for a range ``%r<N>``. ``lanes`` is 2, 4 or 8 for
    ``.v2``, ``.v4`` or ``.v8``, else 1.
    """

    name: str
    size: int | None
    type: str
    lanes: int = 1


class Variable(NamedTuple):
    """A variable in a state space.

    ``size_bytes`` is None when the size is not known at compile time (``.extern .shared a[]``).
    """

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
        """Return the ``.loc`` that applies to an instruction; None if no ``.loc`` precedes it."""
        return self.locations[instruction.location] if instruction.location >= 0 else None


class LaunchBounds(Struct, frozen=True):
    """Performance directives of an entry; a directive that is absent gives 0."""

    max_threads: int = 0
    required: bool = False
    min_blocks: int = 0
    max_registers: int = 0
    cluster: int = 0


class Function(Struct):
    """An ``.entry`` or ``.func`` with a body, which `body.read_body` reads on demand.

    Bodies are not kept. If a reader examines one function at a time, its memory use therefore
    depends on the largest function, not on the size of the file.
    """

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
        """Tell whether the function is a kernel."""
        return self.kind == "entry"

    @property
    def line(self) -> int:
        """Return the 1-based line of the header in the file."""
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
        """Yield the kernels in file order."""
        return (f for f in self.functions if f.is_entry)


class PtxFile(Struct):
    """Result of reading one file: its modules, and the problems found in it."""

    source: SourceText
    modules: list[Module] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def functions(self) -> Iterator[Function]:
        """Yield all functions with a body, in file order."""
        return (function for module in self.modules for function in module.functions)

    def entries(self) -> Iterator[Function]:
        """Yield all kernels in file order."""
        return (function for function in self.functions() if function.is_entry)


def element_bytes(type_name: str) -> int:
    """Return the size in bytes of one element of a PTX type; 0 for an unknown type."""
    return TYPE_BYTES.get(type_name, 0)
