"""Launch a kernel: copy arguments to the arena, run blocks in batches, collect the results.

The arena is the memory that stands for a GPU's global memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.emulator.blocks import split_blocks
from gpuemu_flow.emulator.clusters import LaunchShape, check_dimensions, size_of, together
from gpuemu_flow.emulator.codegen import Code, check_program
from gpuemu_flow.emulator.decode import decode_program
from gpuemu_flow.emulator.described import DEFAULT_CHECKS
from gpuemu_flow.emulator.errors import UnsupportedError, bad_argument, bad_launch
from gpuemu_flow.emulator.findings import (
    CheckFinding,
    plain_function,
    readable_function,
)
from gpuemu_flow.emulator.global_races import GlobalRaces, MoreWrittenError, QuickGlobalRaces
from gpuemu_flow.emulator.host.fatbin import link_modules
from gpuemu_flow.emulator.ir import KernelParameter, KernelProgram
from gpuemu_flow.emulator.machine import BlockMachine
from gpuemu_flow.emulator.memory import GLOBAL_BASE, LaunchArena, SideBySide
from gpuemu_flow.emulator.native.backend import NativeKernel
from gpuemu_flow.emulator.rewriting import watch_products, watch_registers
from gpuemu_flow.emulator.state import CaseMemory, KernelLaunch
from gpuemu_flow.emulator.tensor_maps import MAP_BYTES, TensorMap
from gpuemu_flow.emulator.types import Array
from gpuemu_flow.lint.ptx.model import Function
from gpuemu_flow.lint.ptx.parser import read_ptx
from gpuemu_flow.lint.rules.instructions import unset_constants
from gpuemu_flow.model.errors import Problem, did_you_mean

BATCH_THREADS = 32768
"""Threads of one batch: enough to hide Python's cost per step, few enough to stay in the cache."""

BATCH_LOCAL = 1 << 26
"""Largest number of bytes of local memory of the threads of one batch."""

GRID_WORKSPACE = 1024
"""Bytes that the driver gives the barrier of all blocks (``grid.sync()``)."""

DEFAULT_BUDGET = 20_000_000_000
"""Largest number of thread instructions of one launch, unless the launch sets another limit."""


class BufferArgument(Struct, frozen=True):
    """A buffer in global memory. A buffer `beside` the parameters is one that a structure points
    to, or the content of the module's variable `symbol`."""

    data: Array
    initialised: bool = True
    name: str = ""
    kept: bool = False
    offset: int = 0
    tensor: TensorMap | None = None
    beside: bool = False
    symbol: str = ""


class ScalarArgument(Struct, frozen=True):
    """The bytes of a number or structure that is passed by value."""

    data: bytes


class StructArgument(Struct, frozen=True):
    """A structure that is passed by value; `pointers` are its offsets that point to arguments."""

    data: bytes
    pointers: tuple[tuple[int, int], ...] = ()


class PointerArgument(Struct, frozen=True):
    """A pointer into the buffer of an earlier argument."""

    argument: int
    offset: int
    tensor: TensorMap | None = None


Argument = BufferArgument | ScalarArgument | StructArgument | PointerArgument


class LaunchResult(Struct, frozen=True):
    """The outcome of a launch."""

    buffers: tuple[Array | None, ...]
    findings: tuple[CheckFinding, ...]
    printed: str
    instructions: int
    backend: str = "numpy"
    note: str = ""


class Kernel(Struct, dict=True):
    """A kernel ready to be launched any number of times."""

    program: KernelProgram
    _watched: Kernel | None = None

    def __post_init__(self) -> None:
        check_program(self.program)
        self._blocks = split_blocks(self.program)
        self._code = Code(self.program, self._blocks)
        self._native = NativeKernel(self.program, self._blocks)

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def parameters(self) -> list[KernelParameter]:
        return self.program.parameters

    def launch(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Argument],
        *,
        shared: int = 0,
        checks: Iterable[str] = DEFAULT_CHECKS,
        budget: int = DEFAULT_BUDGET,
        order: Sequence[int] | None = None,
        warps_reversed: bool = False,
        backend: str = "auto",
        cluster: Sequence[int] = (),
    ) -> LaunchResult:
        """Run the kernel once. Raises LaunchError for a grid, block or arguments that make no
        sense. Raises BudgetError when the budget is spent, for example by a kernel that never
        ends."""
        wanted = frozenset(checks)
        kernel = self
        if "mem" in wanted and self._products_may_wrap(grid, block, arguments):
            kernel = Kernel(watch_products(self.program))
        kernel = kernel.for_checks(wanted)
        shape = check_dimensions(self.program, grid, block, shared, cluster)
        return kernel._launch(
            shape, arguments, shared, wanted, budget, order, warps_reversed, backend
        )

    def _products_may_wrap(
        self, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Argument]
    ) -> bool:
        """Tell whether a product of two numbers that the kernel gets has more than 32 bits."""
        given = (a for a in arguments if not getattr(a, "beside", False))
        known = [n * m for n, m in zip(grid, block, strict=False)]
        for parameter, argument in zip(self.program.parameters, given, strict=False):
            if isinstance(argument, ScalarArgument) and parameter.type[0] in "us":
                known.append(abs(int.from_bytes(argument.data, "little", signed=True)))
        *_, second, first = sorted([1, *known])
        return first * second >= 1 << 31

    def for_checks(self, checks: frozenset[str]) -> Kernel:
        """Return the kernel to launch with these checks: this kernel, or a copy with extra code.
        The check ``init`` needs the copy if registers may be read before they are written. The copy
        reports such reads."""
        return self._watching() if "init" in checks and self._blocks.entry_live else self

    def _launch(
        self, shape: LaunchShape, arguments: Sequence[Argument], shared: int,
        checks: frozenset[str], budget: int, order: Sequence[int] | None, warps_reversed: bool,
        backend: str,
    ) -> LaunchResult:  # fmt: skip
        def prepared() -> tuple[KernelLaunch, list[int]]:
            launch, (buffers,) = self.prepare(shape, [arguments], shared, checks, budget)
            launch.warps_reversed = warps_reversed
            return launch, buffers

        launch, buffers = prepared()
        ids = np.arange(launch.blocks) if order is None else np.asarray(order)
        wished = "numpy" if warps_reversed else backend
        chosen = self._native.choose(
            wished, launch.threads, launch.blocks, checks, size_of(shape.cluster)
        )
        note = chosen.note
        if chosen.compiled:
            if self._native.run(launch, ids):
                return _result(launch, buffers, arguments, "c", "")
            note = "a check found something, which numpy describes"
            launch, buffers = prepared()
        written: frozenset[int] = frozenset()
        while True:
            try:
                self.run(launch, ids, written=written)
            except MoreWrittenError as more:
                written, (launch, buffers) = more.written, prepared()
            else:
                return _result(launch, buffers, arguments, "numpy", note)

    def run(
        self, launch: KernelLaunch, ids: Array, *, written: frozenset[int] = frozenset()
    ) -> None:
        """Run blocks with numpy, batch by batch. `written` has the numbers of buffers that an
        earlier attempt at this launch wrote. Raises MoreWrittenError when the launch must be made
        again, with more of them."""
        races: GlobalRaces | None = None
        if "race" in launch.checks:
            races = QuickGlobalRaces(launch, written)
        machine = BlockMachine(launch, self._blocks, self._code)
        machine.global_races = races
        local = max(1, self.program.local_bytes)
        size = size_of(launch.cluster)
        per = max(1, min(BATCH_THREADS, BATCH_LOCAL // local) // machine.width // size) * size
        if launch.workspace:
            per = len(ids)
        ids = together(ids, launch.grid, launch.cluster)
        with np.errstate(all="ignore"):
            for start in range(0, len(ids), per):
                machine.run(ids[start : start + per])

    def _watching(self) -> Kernel:
        """Return a copy of the kernel that reports reads of registers that were never written."""
        if self._watched is None:
            self._watched = Kernel(watch_registers(self.program, self._blocks))
        return self._watched

    def prepare(
        self, shape: LaunchShape, lists: Sequence[Sequence[Argument]], shared: int,
        checks: frozenset[str], budget: int,
    ) -> tuple[KernelLaunch, list[list[int]]]:  # fmt: skip
        """Lay out the memory of a launch for one case, or for several cases side by side. `lists`
        has one list of arguments for each case."""
        program = self.program
        sizes = []
        for arguments in lists:
            given = sum(not getattr(a, "beside", False) for a in arguments)
            if given != len(program.parameters):
                names = ", ".join(f"{p.name} (.{p.type})" for p in program.parameters)
                raise bad_argument(
                    f"{program.name} takes {len(program.parameters)} arguments, not {given}",
                    f"its parameters: {names}" if names else "",
                )
            sizes += [a.data.nbytes for a in arguments if isinstance(a, BufferArgument)]
            sizes += [v.size for v in program.globals] + [program.parameter_bytes + 16]
        sizes += [GRID_WORKSPACE] * program.synchronises_grid
        if len(lists) == 1:
            arena = LaunchArena(sizes)
            made = [_place(program, lists[0], arena)]
        else:
            arena = LaunchArena([*sizes, SideBySide.room(sizes)])
            shared_arena, made = SideBySide(arena, len(lists)), []
            for arguments in lists:
                shared_arena.begin_case()
                made.append(_place(program, arguments, shared_arena))
        first, cases = made[0][0], tuple(case for case, _ in made)
        workspace = 0
        if program.synchronises_grid:
            data = bytes(GRID_WORKSPACE)
            workspace = arena.allocate("the grid's barrier", GRID_WORKSPACE, data, 1)
        launch = KernelLaunch(
            program, arena, shape.grid, shape.block, first.parameters,
            first.parameter_address, first.symbols, shared, checks, budget * len(lists),
            cases if len(lists) > 1 else (), cluster=shape.cluster, workspace=workspace,
        )  # fmt: skip
        return launch, [buffers for _, buffers in made]


def _place(
    program: KernelProgram, arguments: Sequence[Argument], arena: LaunchArena | SideBySide
) -> tuple[CaseMemory, list[int]]:
    """Allocate the memory of one case: module variables, buffers and parameters."""
    symbols, set_by = [], _symbols(program, arguments)
    buffers = [-1] * len(arguments)
    for variable in program.globals:
        data = variable.initial.ljust(variable.size, b"\0")
        number = set_by.get(variable.name, -1)
        if number >= 0:
            raw = arguments[number].data.tobytes()  # type: ignore[union-attr]
            data = raw + data[len(raw) :]
        symbols.append(
            arena.allocate(variable.name, variable.size, data, 1, writable=not variable.constant)
        )
        if number >= 0:
            buffers[number] = len(arena.buffers) - 1
    numbers = {v.name: n for n, v in enumerate(program.globals)}
    for variable, address in zip(program.globals, symbols, strict=True):
        for offset, name, added in variable.pointers if variable.name not in set_by else ():
            where = address - GLOBAL_BASE + offset
            value = struct.pack("<Q", symbols[numbers[name]] + added)
            arena.data[where : where + 8] = np.frombuffer(value, np.uint8)
    block = _pack(program, arguments, arena, buffers)
    address = arena.allocate("the parameters", len(block), bytes(block), 1, writable=False)
    return CaseMemory(bytes(block), address, symbols), buffers


def _symbols(program: KernelProgram, arguments: Sequence[Argument]) -> dict[str, int]:
    """Return the numbers of the arguments that are the content of variables, by these."""
    found: dict[str, int] = {}
    for number, argument in enumerate(arguments):
        wanted = argument.symbol if isinstance(argument, BufferArgument) else ""
        if not wanted:
            continue
        known = {readable_function(v.name): v for v in program.globals}
        variable = known.get(wanted) or next(
            (v for name, v in known.items() if name.rpartition("::")[2] == wanted), None
        )
        if variable is None:
            hint = (
                did_you_mean(wanted, tuple(known)) or "the kernel uses no variables of its module"
            )
            raise bad_argument(f"{program.name} uses no variable {wanted!r}", hint)
        size = argument.data.nbytes  # type: ignore[union-attr]
        if size > variable.size:
            raise bad_argument(f"{wanted} has {variable.size:,} bytes, its content {size:,}")
        found[variable.name] = number
    return found


def _pack(
    program: KernelProgram, arguments: Sequence[Argument], arena: LaunchArena | SideBySide,
    buffers: list[int],
) -> bytearray:  # fmt: skip
    """Allocate the buffers, and write the arguments to a parameter block. The numbers of the
    buffers are written to `buffers`, in the order of the arguments."""
    block = bytearray(program.parameter_bytes + 16)
    for number, argument in enumerate(arguments):
        if isinstance(argument, PointerArgument):
            buffers[number] = buffers[argument.argument]
        elif isinstance(argument, BufferArgument) and not argument.symbol:
            data = np.ascontiguousarray(argument.data)
            raw = data.tobytes() if argument.initialised or argument.kept else None
            name = argument.name or program.parameters[number].name
            arena.allocate(
                name, data.nbytes, raw, max(1, data.itemsize), initialised=argument.initialised
            )
            buffers[number] = len(arena.buffers) - 1
    for number, (parameter, argument) in enumerate(
        zip(program.parameters, arguments, strict=False)
    ):
        if isinstance(argument, (BufferArgument, PointerArgument)):
            _check_pointer(parameter, argument)
            piece = _pointer(argument, GLOBAL_BASE + arena.buffers[buffers[number]].start)
        else:
            piece = argument.data
            if len(piece) != parameter.size:
                raise bad_argument(
                    f"{parameter.name} is a .{parameter.type} of {parameter.size} bytes, "
                    f"the argument has {len(piece)}"
                )
        block[parameter.offset : parameter.offset + len(piece)] = piece
        for offset, target in getattr(argument, "pointers", ()):
            start = arena.buffers[buffers[target]].start
            struct.pack_into("<Q", block, parameter.offset + offset, GLOBAL_BASE + start)
    return block


def _check_pointer(parameter: KernelParameter, argument: BufferArgument | PointerArgument) -> None:
    if argument.tensor is None and parameter.size != 8:
        raise bad_argument(
            f"{parameter.name} is a .{parameter.type} of {parameter.size} bytes, no pointer",
            "pass a number, for example i32=7",
        )
    if argument.tensor is not None and parameter.size != MAP_BYTES:
        raise bad_argument(f"{parameter.name} is no tensor map: it has {parameter.size} bytes")


def _pointer(argument: BufferArgument | PointerArgument, start: int) -> bytes:
    """Return the bytes of a pointer argument: an address or, for a tensor, its tensor map. `start`
    is the address of the buffer into which the argument points."""
    address = start + argument.offset
    if argument.tensor is None:
        return struct.pack("<Q", address)
    return replace(argument.tensor, address=address).encode()


def unset_symbols(program: KernelProgram, arguments: Sequence[Argument]) -> list[str]:
    """Return the names of the constants that the kernel uses and nothing gave a content."""
    given = _symbols(program, arguments)
    (function,) = [f for f in program.module.functions if f.name == program.name]
    return [readable_function(n) for n in unset_constants(function) if n not in given]


def _result(
    launch: KernelLaunch, buffers: list[int], arguments: Sequence[Argument], backend: str, note: str
) -> LaunchResult:
    return LaunchResult(
        outputs_of(launch, buffers, arguments), tuple(launch.findings()),
        "".join(launch.printed), launch.executed, backend, note,
    )  # fmt: skip


def outputs_of(
    launch: KernelLaunch, buffers: Sequence[int], arguments: Sequence[Argument]
) -> tuple[Array | None, ...]:
    """Return, for each argument, a copy of its buffer after the launch. `buffers` has the number of
    each argument's buffer. If an argument has none, or only points into the buffer of another one,
    its item in the result is None."""
    return tuple(
        _take_out(launch.arena, buffer, argument)
        if buffer >= 0 and isinstance(argument, BufferArgument)
        else None
        for buffer, argument in zip(buffers, arguments, strict=True)
    )


def _take_out(arena: LaunchArena, buffer: int, argument: BufferArgument) -> Array:
    raw = arena.read(arena.buffers[buffer]).copy()
    return raw.view(argument.data.dtype).reshape(argument.data.shape)


def read_entries(data: bytes, file: str) -> list[Function]:
    found = read_ptx(link_modules(data), file)
    entries = list(found.entries())
    if found.problems:
        raise UnsupportedError(*found.problems)
    if not entries:
        raise UnsupportedError(
            Problem("emulator-no-kernel", "the file holds no kernel (.entry)", "", file)
        )
    return entries


def choose_entry(entries: Sequence[Function], name: str, file: str) -> Function:
    """Choose a kernel by its name in the PTX, or by its name in C++, with or without namespaces and
    template arguments. An empty name chooses the only kernel. Raises LaunchError if not exactly one
    kernel has the name, or the name is empty and there are several kernels."""
    names = [readable_function(entry.name) for entry in entries]
    chosen = [e for e in entries if e.name == name]
    if not name and len(entries) == 1:
        chosen = list(entries)
    wanted = name.replace(" ", "")
    for readable in (readable_function, _without_namespaces, plain_function):
        if not chosen and name:
            chosen = [e for e in entries if readable(e.name).replace(" ", "") == wanted]
    if len(chosen) != 1:
        problem = f"no kernel {name!r}" if name else "several kernels; name one with --entry"
        if len(chosen) > 1:
            names = [readable_function(entry.name) for entry in chosen]
            problem = f"{name!r} is the name of {len(chosen)} kernels"
        raise bad_launch(f"{file}: {problem}", did_you_mean(name, tuple(names)))
    return chosen[0]


def _without_namespaces(symbol: str) -> str:
    name, bracket, arguments = readable_function(symbol).partition("<")
    return name.rpartition("::")[2] + bracket + arguments


def load_kernel(data: bytes, file: str = "", entry: str = "") -> Kernel:
    """Read a PTX file and make one of its kernels ready. Raises UnsupportedError for a kernel that
    cannot be run; raised before anything runs. Raises LaunchError if not exactly one kernel has the
    name, or the name is empty and there are several kernels."""
    return Kernel(decode_program(choose_entry(read_entries(data, file), entry, file)))
