"""Run a compiled kernel: pass the launch's memory to C, one batch of blocks at a time."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from gpuemu_flow.emulator.memory import PATTERN, UNINITIALISED, WRITTEN
from gpuemu_flow.emulator.native import runtime
from gpuemu_flow.emulator.native.prelude import MAX_THREADS
from gpuemu_flow.emulator.races import smallest_access
from gpuemu_flow.emulator.state import KernelLaunch
from gpuemu_flow.emulator.types import WARP, Array

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
        ("mark", ctypes.c_uint32),
        *((name, ctypes.c_void_p) for name in ("pages", "journal", "touched", "journaled")),
        ("failed", ctypes.c_int64),
        ("lenient", ctypes.c_uint32),
    )


def run_blocks(
    library: ctypes.CDLL, launch: KernelLaunch, ids: Array, *, lenient: bool = False
) -> bool:
    """Run all blocks of a launch.

    Parameters
    ----------
    library : CDLL
    launch : KernelLaunch
        The launch. Its arena holds the buffers, into which the results are written.
    ids : int array
        Linear block numbers in the order in which they run.
    lenient : bool
        True to go on past accesses that are not allowed; see `prelude`.

    Returns
    -------
    bool
        False if the numpy back end must repeat the launch, since C met an event that it cannot
        judge, such as a possible race.

    Raises
    ------
    BudgetError
    """
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
    the state 0, unallocated.
    """
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
