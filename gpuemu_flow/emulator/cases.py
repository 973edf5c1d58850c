"""Run many input sets in one launch, each with its own buffers and its own copy of the grid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gpuemu_flow.emulator.clusters import check_dimensions
from gpuemu_flow.emulator.described import DEFAULT_CHECKS
from gpuemu_flow.emulator.global_races import MoreWrittenError
from gpuemu_flow.emulator.ir import KernelProgram, Special, Step
from gpuemu_flow.emulator.launch import (
    BATCH_THREADS,
    DEFAULT_BUDGET,
    Argument,
    BufferArgument,
    Kernel,
    outputs_of,
)
from gpuemu_flow.emulator.polling import is_strong
from gpuemu_flow.emulator.types import WARP, Array
from gpuemu_flow.model.errors import FlowError

MAX_BYTES = 1 << 28
"""Largest size in bytes of all buffers of one launch of several cases."""

Outputs = tuple[Array | None, ...]


def launch_cases(
    kernel: Kernel,
    grid: Sequence[int],
    block: Sequence[int],
    lists: Sequence[Sequence[Argument]],
    *,
    shared: int = 0,
    checks: Iterable[str] = DEFAULT_CHECKS,
    budget: int = DEFAULT_BUDGET,
) -> list[Outputs] | None:
    """Run a kernel on many lists of arguments of the same shapes, in as few launches as possible.
    Each list is a case."""
    kernel = kernel.for_checks(frozenset(checks))
    per = _cases_at_a_time(kernel, grid, block, lists)
    if per < 2 or not can_share(kernel.program):
        return None
    found: list[Outputs] = []
    for start in range(0, len(lists), per):
        some = lists[start : start + per]
        try:
            outputs = _launch(kernel, grid, block, some, shared, frozenset(checks), budget)
        except FlowError:
            return None
        if outputs is None:
            return None
        found += outputs
    return found


def can_share(program: KernelProgram) -> bool:
    """Tell whether the cases of one launch cannot influence each other. False if threads read a
    clock, or may wait for other threads, as the blocks of a cluster do. The behaviour of such
    threads depends on the number of threads in the launch, which grows with the number of cases."""
    return program.required_cluster is None and not any(map(_notices, program.steps))


def _notices(step: Step) -> bool:
    waits = step.opcode.base in ("atom", "nanosleep", "mbarrier") or (
        step.opcode.base == "ld" and is_strong(step)
    )
    clocks = ("clock", "globaltimer")
    return waits or any(isinstance(o, Special) and o.name.startswith(clocks) for o in step.operands)


def _cases_at_a_time(
    kernel: Kernel, grid: Sequence[int], block: Sequence[int], lists: Sequence[Sequence[Argument]]
) -> int:
    """Choose the number of whole cases that fit in one batch of blocks."""
    width = -(-int(np.prod(block)) // WARP) * WARP
    threads = max(1, width * int(np.prod(grid)))
    local = max(1, kernel.program.local_bytes)
    size = sum(a.data.nbytes for a in lists[0] if isinstance(a, BufferArgument)) if lists else 0
    return min(
        len(lists), BATCH_THREADS // threads, MAX_BYTES // max(1, size),
        MAX_BYTES // (threads * local),
    )  # fmt: skip


def _launch(
    kernel: Kernel, grid: Sequence[int], block: Sequence[int],
    lists: Sequence[Sequence[Argument]], shared: int, checks: frozenset[str], budget: int,
) -> list[Outputs] | None:  # fmt: skip
    shape = check_dimensions(kernel.program, grid, block, shared)
    written: frozenset[int] = frozenset()
    while True:
        launch, buffers = kernel.prepare(shape, lists, shared, checks, budget)
        try:
            kernel.run(launch, np.arange(launch.all_blocks), written=written)
        except MoreWrittenError as more:
            written = more.written
        else:
            break
    if launch.findings() or launch.printed:
        return None
    return [
        outputs_of(launch, numbers, arguments)
        for numbers, arguments in zip(buffers, lists, strict=True)
    ]
