"""Choose numpy or compiled C for a launch, and keep the compiled code of each kernel."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection
from typing import Any

import numpy as np
from msgspec import Struct, field

from gpuemu_flow.emulator.blocks import Blocks
from gpuemu_flow.emulator.effects.loads import space_of
from gpuemu_flow.emulator.errors import BudgetError
from gpuemu_flow.emulator.ir import KernelProgram, MemoryOperand, Step
from gpuemu_flow.emulator.memory import PATTERN, UNINITIALISED, WRITTEN
from gpuemu_flow.emulator.native import runtime
from gpuemu_flow.emulator.native.compiler import CompileError, find_compiler, load_library
from gpuemu_flow.emulator.native.generate import generate
from gpuemu_flow.emulator.native.prelude import MAX_THREADS
from gpuemu_flow.emulator.native.writer import LackingError
from gpuemu_flow.emulator.polling import is_strong
from gpuemu_flow.emulator.races import smallest_access
from gpuemu_flow.emulator.state import KernelLaunch
from gpuemu_flow.emulator.types import WARP, Array

LARGE = 30_000_000
"""Number of thread instructions above which compiling saves time; measured, see
docs/benchmarks.md."""

LOOP_WEIGHT = 16
"""Assumed number of runs of a step, for each loop around it."""

_BY_NUMPY = ("order",)
_ORDER_FREE = frozenset({"add", "min", "max", "and", "or", "xor"})


class BackendChoice(Struct, frozen=True):
    """The decision whether numpy or compiled C is to run a launch."""

    compiled: bool
    note: str = ""


class NativeKernel(Struct):
    """One kernel as compiled C; the kernel is compiled when C is first chosen for it."""

    program: KernelProgram
    blocks: Blocks
    _libraries: dict[bool, ctypes.CDLL] = field(default_factory=dict)
    _problem: str = ""
    _work: int = -1

    def choose(
        self, backend: str, threads: int, blocks: int, checks: Collection[str], together: int
    ) -> BackendChoice:
        """Choose the back end of a launch."""
        if backend == "numpy":
            return BackendChoice(False)
        asked = backend == "c"
        if not asked and threads * blocks * self._weighted_steps() < LARGE:
            return BackendChoice(False)
        if together > 1:
            return BackendChoice(False, "clusters of blocks are run by numpy only" if asked else "")
        by_numpy = [name for name in _BY_NUMPY if name in checks]
        if by_numpy:
            verb = "are" if len(by_numpy) > 1 else "is"
            note = f"{' and '.join(by_numpy)} {verb} checked by numpy only"
            return BackendChoice(False, note if asked else "")
        if blocks > 1 and any(map(_waits_for_blocks, self.program.steps)):
            return BackendChoice(False, "blocks may wait for each other")
        if not asked and any(map(_depends_on_order, self.program.steps)):
            return BackendChoice(False, "results may depend on the order of blocks")
        races = "race" in checks
        self._load(races)
        return BackendChoice(races in self._libraries, self._problem)

    def run(self, launch: KernelLaunch, ids: Array, *, lenient: bool = False) -> bool:
        library = self._libraries["race" in launch.checks]
        try:
            return run_blocks(library, launch, ids, lenient=lenient)
        except BudgetError:
            if any(map(_depends_on_order, self.program.steps)):
                return False  # a thread may have waited for one that had not begun
            raise

    def _load(self, races: bool) -> None:
        if races in self._libraries or self._problem:
            return
        # Imported only when something is compiled, because importing the store is slow.
        from gpuemu_flow.store.private_files import user_cache_folder  # noqa: PLC0415

        compiler = find_compiler(os.environ)
        if compiler is None:
            self._problem = "no C compiler (cc, gcc or clang) is on PATH"
            return
        try:
            source = generate(self.program, races=races)
            folder = user_cache_folder(os.environ) / "kernels"
            self._libraries[races] = load_library(source, compiler, folder)
        except LackingError as lacking:
            self._problem = f"the compiled back end lacks {lacking}"
        except CompileError as error:
            self._problem = str(error)

    def _weighted_steps(self) -> int:
        if self._work < 0:
            self._work = _weigh(self.blocks)
        return self._work


def _weigh(blocks: Blocks) -> int:
    """Estimate the number of steps that a thread executes; steps in loops count several times."""
    depth = [0] * len(blocks.starts)
    for b, follow in enumerate(blocks.successors):
        for target in follow:
            if target <= b:
                for inside in range(target, b + 1):
                    depth[inside] += 1
    return sum(
        (end - start) * LOOP_WEIGHT ** min(depth[b], 3)
        for b, (start, end) in enumerate(zip(blocks.starts, blocks.ends, strict=True))
    )


def _reaches_blocks(step: Step) -> bool:
    """Tell whether a step may access memory that other blocks can access, too."""
    memory = next((o for o in step.operands if isinstance(o, MemoryOperand)), None)
    return memory is not None and space_of(step, memory) not in ("shared", "local")


def _waits_for_blocks(step: Step) -> bool:
    return step.opcode.base == "ld" and is_strong(step) and _reaches_blocks(step)


def _depends_on_order(step: Step) -> bool:
    opcode = step.opcode
    if opcode.base not in ("atom", "red") or not _reaches_blocks(step):
        return False
    integer = opcode.type[:1] in "usb" and "x2" not in opcode.type and opcode.type[:2] != "bf"
    return opcode.base == "atom" or not integer or not _ORDER_FREE & set(opcode.segments)


# Run a compiled kernel: pass the launch's memory to C, one batch of blocks at a time.


CHUNK = 1 << 15
"""Largest number of blocks per call of C, so that an interrupt is noticed between calls."""

_PAD = 64

_FIRST_MARK = 2**32 - (1 << 18)
"""First mark of a store, near the largest value, so that wrapping around happens often enough to
be tested."""


class _Args(ctypes.Structure):
    """The C structure ``Args``: the arguments of the generated function ``run``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("g", "gs")),
        ("gcap", ctypes.c_uint64),
        *((name, ctypes.c_void_p) for name in ("sm", "ss", "template")),
        ("scap", ctypes.c_uint64),
        *((name, ctypes.c_void_p) for name in ("lm", "ls")),
        ("lcap", ctypes.c_uint64),
        ("lbytes", ctypes.c_uint64),
        ("par", ctypes.c_void_p),
        ("sym", ctypes.c_void_p),
        ("par_address", ctypes.c_uint64),
        ("ids", ctypes.c_void_p),
        ("spent", ctypes.c_int64),
        ("executed", ctypes.c_int64),
        ("budget", ctypes.c_int64),
        ("nt", ctypes.c_uint32 * 3),
        ("nc", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32),
        ("dyn", ctypes.c_uint32),
        ("total", ctypes.c_uint32),
        ("unwritten", ctypes.c_uint32),
        ("sync", ctypes.c_uint32),
        ("across", ctypes.c_uint32),
        ("owners", ctypes.c_void_p),
        ("marks", ctypes.c_void_p),
        ("inner", ctypes.c_void_p),
        ("mark", ctypes.c_uint32),
        ("age", ctypes.c_uint32),
        *((name, ctypes.c_void_p) for name in ("pages", "journal", "touched", "journaled")),
        ("failed", ctypes.c_int64),
        ("lenient", ctypes.c_uint32),
    )


def run_blocks(
    library: ctypes.CDLL, launch: KernelLaunch, ids: Array, *, lenient: bool = False
) -> bool:
    """Run all blocks of a launch. Raises BudgetError."""
    keep, args = _arguments(launch, np.ascontiguousarray(ids, np.int64))
    args.lenient, args.failed = lenient, -1
    run = library.run
    run.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    run.restype = ctypes.c_int
    done = True
    for first in range(0, len(ids), CHUNK):
        status = run(ctypes.byref(args), first, min(first + CHUNK, len(ids)))
        if status == runtime.SPENT:
            launch.charge(1, launch.budget + 1, 0)
        if status != runtime.DONE:
            done = False
            break
    launch.executed += args.executed
    launch.failed = args.failed
    del keep
    return done


def _arguments(launch: KernelLaunch, ids: Array) -> tuple[list[Array], _Args]:
    program, arena = launch.program, launch.arena
    if launch.threads > MAX_THREADS:
        raise AssertionError("a block of more threads than a launch may have")
    unwritten = UNINITIALISED if "init" in launch.checks else WRITTEN
    shadow = arena.shadow
    if unwritten == WRITTEN:
        for buffer in arena.buffers:
            cells = shadow[buffer.start : buffer.end]
            cells[cells == UNINITIALISED] = WRITTEN
    template = _shared_template(launch, unwritten)
    width = -(-launch.threads // WARP) * WARP
    local = -(-program.local_bytes // 16) * 16 + _PAD
    arrays: dict[str, Array] = {
        "g": arena.data, "gs": shadow,
        "sm": np.full(len(template), PATTERN, np.uint8), "ss": template.copy(),
        "template": template,
        "lm": np.zeros(local * width, np.uint8),
        "ls": np.zeros(local * width, np.uint8),
        "par": np.frombuffer(launch.parameters, np.uint8),
        "sym": np.array([*launch.symbols, 0], np.uint64),
        "ids": ids,
    }  # fmt: skip
    races = "race" in launch.checks
    across = races and launch.blocks > 1
    marks = len(arena.data) // smallest_access(program) + 64
    if races:
        arrays["marks"] = np.zeros(marks, np.uint32)
        arrays["inner"] = np.zeros(marks, np.uint64)
    if across:
        arrays["owners"] = np.zeros(marks, np.uint32)
    values: dict[str, Any] = {name: array.ctypes.data for name, array in arrays.items()}
    if launch.arena.journal is not None:
        values |= launch.arena.journal.pointers()
    total = program.shared_bytes + launch.dynamic_shared
    args = _Args(
        **values, gcap=len(arena.data), scap=len(template),
        lcap=local, lbytes=program.local_bytes,
        par_address=launch.parameter_address, budget=launch.budget - launch.spent,
        nt=(ctypes.c_uint32 * 3)(*launch.block), nc=(ctypes.c_uint32 * 3)(*launch.grid),
        threads=launch.threads, dyn=launch.dynamic_shared, total=total, unwritten=unwritten,
        sync="sync" in launch.checks, across=across, mark=_FIRST_MARK,
    )  # fmt: skip
    return list(arrays.values()), args


def _shared_template(launch: KernelLaunch, unwritten: int) -> Array:
    """Return the initial states of all bytes of a block's shared memory; see `emulator.memory`.
    Bytes of variables and of dynamic shared memory have the state `unwritten`. All other bytes have
    the state 0, unallocated."""
    program = launch.program
    size = program.shared_bytes
    if launch.dynamic_shared:
        size = max(size, program.dynamic_offset + launch.dynamic_shared)
    template = np.zeros(-(-size // 16) * 16 + _PAD, np.uint8)
    for region in program.shared:
        template[region.offset : region.offset + region.size] = unwritten
    if launch.dynamic_shared:
        start = program.dynamic_offset
        template[start : start + launch.dynamic_shared] = unwritten
    return template
