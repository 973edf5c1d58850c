"""The emulator's representation of a kernel: operands, steps, locations, memory layout."""

from __future__ import annotations

from msgspec import Struct, field

from gpuemu_flow.lint.ptx.model import Module, Opcode


class Register(Struct, frozen=True):
    """A virtual register: its number, and the type with which it is declared."""

    number: int
    type: str


class Immediate(Struct, frozen=True):
    """A constant: `value` is the number if `kind` is ``int``, the bits if ``f32`` or ``f64``."""

    value: int
    kind: str = "int"


class Special(Struct, frozen=True):
    """A special register such as ``%tid.x``; `name` lacks the percent sign."""

    name: str


class Symbol(Struct, frozen=True):
    """The address of a variable: an offset into the layout of its state space. In the space
    ``global``, the offset is instead the number of the variable in `KernelProgram.globals`.
    `displacement` bytes are added to the address."""

    space: str
    offset: int
    displacement: int = 0


class OperandGroup(Struct, frozen=True):
    """Several operands written as one: ``{a, b}`` or the ``p|q`` of setp and shfl."""

    items: tuple[Operand, ...]


class MemoryOperand(Struct, frozen=True):
    """The address operand ``[base+displacement]``."""

    base: Register | Immediate | Symbol
    displacement: int


class TensorPlace(Struct, frozen=True):
    """``[map, {x, y}]``: the address of a tensor map, and coordinates in the tensor."""

    map: MemoryOperand
    coordinates: tuple[Operand, ...]


class Inverted(Struct, frozen=True):
    """``!p``: a predicate operand whose negation is read."""

    register: Register


class Sink(Struct, frozen=True):
    """``_``: an operand that discards the result."""


Operand = (
    Register
    | Immediate
    | Special
    | Symbol
    | OperandGroup
    | MemoryOperand
    | TensorPlace
    | Inverted
    | Sink
)


class StepLocation(Struct, frozen=True):
    """The location of a step (PTX line, source file and line), and its text for messages."""

    text: str
    ptx_line: int
    file: str = ""
    line: int = 0

    @property
    def where(self) -> str:
        if self.line:
            return f"{self.file.rpartition('/')[2]}:{self.line}"
        return f"PTX line {self.ptx_line}"


class Step(Struct, frozen=True):
    """One instruction after decoding."""

    opcode: Opcode
    operands: tuple[Operand, ...]
    guard: Register | None
    negated: bool
    targets: tuple[int, ...]
    offset: int
    location: tuple[int, int] | None
    text: str
    note: str = ""
    headers: str = ""
    """Of CUDA, from which the step was inlined."""


class KernelParameter(Struct, frozen=True):
    """A kernel parameter and its offset and size in the parameter block."""

    name: str
    type: str
    offset: int
    size: int


STACK = "the stack"
"""Name of the region of local memory that ``alloca`` takes from."""


class MemoryRegion(Struct, frozen=True):
    """A named piece of shared or local memory."""

    name: str
    offset: int
    size: int


class GlobalVariable(Struct, frozen=True):
    """A module's ``.global`` or ``.const`` variable with its initial bytes."""

    name: str
    size: int
    initial: bytes
    constant: bool
    pointers: tuple[tuple[int, str, int], ...] = ()


class KernelProgram(Struct):
    """A kernel ready for code generation."""

    name: str
    module: Module
    steps: list[Step] = field(default_factory=list)
    register_types: list[str] = field(default_factory=list)
    register_names: list[str] = field(default_factory=list)
    parameters: list[KernelParameter] = field(default_factory=list)
    parameter_bytes: int = 0
    shared: list[MemoryRegion] = field(default_factory=list)
    shared_bytes: int = 0
    dynamic_offset: int = -1
    local: list[MemoryRegion] = field(default_factory=list)
    local_bytes: int = 0
    globals: list[GlobalVariable] = field(default_factory=list)
    required_threads: int = 0
    max_threads: int = 0
    required_cluster: tuple[int, int, int] | None = None
    largest_cluster: int = 1
    replicates: bool = False
    """Whether lanes hold copies of other lanes' values, as in what Triton compiles."""

    @property
    def synchronises_grid(self) -> bool:
        """Tell whether blocks may wait for all blocks, by cooperative groups' ``grid.sync()``."""
        return any(
            isinstance(operand, Special) and operand.name in ("envreg1", "envreg2")
            for step in self.steps
            for operand in step.operands
        )

    def place(self, step: int) -> StepLocation:
        found = self.steps[step]
        source = self.module.source
        file, line = "", 0
        if found.location is not None:
            file, line = self.module.files.get(found.location[0], ""), found.location[1]
        return StepLocation(found.text, source.line_of(found.offset), file, line)
