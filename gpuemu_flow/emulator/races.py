"""Races on shared memory between barriers, and on global memory between blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuemu_flow.emulator.lanes import Lanes
from gpuemu_flow.emulator.state import State
from gpuemu_flow.emulator.types import WARP, Array


class SharedRaces:
    """Happens-before of one batch, by vector clocks of warps.

    Two accesses are in order when a barrier or ``bar.warp.sync`` lies between them. Each warp
    counts its own synchronisations; what a warp knows of the others travels at barriers. An
    access is stamped with its warp's count: it lies before another thread's access when that
    thread's warp has learnt of a later count.
    """

    def __init__(self, machine: State, size: int) -> None:
        self._m = machine
        self._grain = 1
        cells = size + 64
        self.warps = machine.width // WARP
        rows = machine.count
        self.clock: Array = np.zeros((rows, self.warps, self.warps), np.int32)
        self.writer: Array = np.full(cells, -1, np.int32)
        self.written: Array = np.zeros(cells, np.int32)
        self.write_step: Array = np.zeros(cells, np.int32)
        self.write_strong: Array = np.zeros(cells, bool)
        self.reader: Array = np.full(cells, -1, np.int32)
        self.read: Array = np.zeros(cells, np.int32)
        self.read_step: Array = np.zeros(cells, np.int32)
        self.read_many: Array = np.zeros(cells, bool)

    def access(
        self, lanes: Lanes, good: Array | None, size: int, step: int, *, write: bool, strong: bool,
        values: Sequence[Array] = (), width: int = 0,
    ) -> None:  # fmt: skip
        """Record and check one access."""

    def barrier(self, chosen: Array | None) -> None:
        """Join the clocks of the warps whose threads a barrier lets go on."""


class GlobalRaces:
    """Races between blocks on global memory."""

    def access(
        self, lanes: Lanes, good: Array | None, size: int, step: int, *, write: bool, strong: bool,
        values: Sequence[Array] = (), width: int = 0,
    ) -> None:  # fmt: skip
        """Record and check one access."""
