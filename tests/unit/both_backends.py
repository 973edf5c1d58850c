"""Running a launch with numpy and, where a C compiler is there, with C: the bits must be equal."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from gpuemu_flow.emulator.launch import Argument, Kernel, LaunchResult
from gpuemu_flow.emulator.native.compiler import find_compiler

HAS_COMPILER = find_compiler(os.environ) is not None
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler on PATH")

WHO: Counter[str] = Counter()
"""Number of launches that C ran (``c``), and of those it has no instruction for (``numpy``)."""


def launch_both(
    kernel: Kernel, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Argument],
    *, shared: int = 0, every: bool = False,
) -> LaunchResult:  # fmt: skip
    """Launch with numpy, compare C with it bit by bit, and give numpy's result; with `every`, C
    must be able to run it."""
    options: dict[str, Any] = {"shared": shared, "backend": "numpy"}
    result = kernel.launch(grid, block, arguments, **options)
    if HAS_COMPILER:
        options |= {"backend": "c", "checks": ("mem", "init", "race", "sync")}
        other = kernel.launch(grid, block, arguments, **options)
        WHO[other.backend] += 1
        assert other.backend == "c" or other.note, "nobody said why C did not run it"
        assert other.backend == "c" or not every, other.note
        assert_equal(result, other)
    return result


def assert_equal(first: LaunchResult, second: LaunchResult) -> None:
    """Compare what two launches left in their buffers, bit by bit."""
    for a, b in zip(first.buffers, second.buffers, strict=True):
        assert (a is None) == (b is None)
        assert a is None or b is None or a.tobytes() == b.tobytes()
