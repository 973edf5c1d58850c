"""Choose numpy or compiled C for a launch, and keep the compiled code of each kernel."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection

from msgspec import Struct, field

from gpuemu_flow.emulator.blocks import Blocks
from gpuemu_flow.emulator.effects.loads import space_of
from gpuemu_flow.emulator.errors import BudgetError
from gpuemu_flow.emulator.ir import KernelProgram, MemoryOperand, Step
from gpuemu_flow.emulator.native.compiler import CompileError, find_compiler, load_library
from gpuemu_flow.emulator.native.execute import run_blocks
from gpuemu_flow.emulator.native.generate import generate
from gpuemu_flow.emulator.native.writer import LackingError
from gpuemu_flow.emulator.polling import is_strong
from gpuemu_flow.emulator.state import KernelLaunch
from gpuemu_flow.emulator.types import Array

LARGE = 30_000_000
"""Number of thread instructions above which compiling saves time; measured, see
docs/benchmarks.md."""

LOOP_WEIGHT = 16
"""Assumed number of runs of a step, for each loop around it."""

_BY_NUMPY = ("order",)
_ORDER_FREE = frozenset({"add", "min", "max", "and", "or", "xor"})


class BackendChoice(Struct, frozen=True):
    """The decision whether numpy or compiled C is to run a launch.

    Attributes
    ----------
    compiled : bool
        True for C.
    note : str
        Reason, for the user, why numpy runs a launch; empty if there is nothing to explain.
    """

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
        """Choose the back end of a launch.

        Parameters
        ----------
        backend : str
            ``auto``, ``numpy`` or ``c``. ``auto`` chooses C if the launch is large and the kernel's
            results do not depend on the order of blocks, so that both back ends give the same bits.
        threads, blocks : int
            Number of threads per block, and number of blocks in the grid.
        checks : collection of str
            Names of the checks to make. With ``order`` among them, numpy runs the launch.
        together : int
            Blocks per cluster.

        Returns
        -------
        BackendChoice
        """
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
        """Run all blocks of a launch; return False if numpy must repeat the launch."""
        library = self._libraries["race" in launch.checks]
        try:
            return run_blocks(library, launch, ids, lenient=lenient)
        except BudgetError:
            if launch.blocks > 1 and any(map(_depends_on_order, self.program.steps)):
                return False  # a block may have waited for one that had not begun
            raise

    def _load(self, races: bool) -> None:
        if races in self._libraries or self._problem:
            return
        # Imported only when something is compiled, because importing the store is slow.
        from gpuemu_flow.store.user_cache import user_cache_folder  # noqa: PLC0415

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
