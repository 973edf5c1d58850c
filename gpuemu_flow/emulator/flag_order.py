"""The order that fences and flags in shared memory impose on the warps of a block.

If a warp executes a fence, and then stores to a flag or updates it by an atomic, it publishes the
vector clock that it had at the fence. A warp that polls the flag (see `polling`), or updates it by
an atomic, merges the published clock into its own. Accesses of a warp between its fence and its
next barrier count as made before the fence, because clocks advance at barriers only.
"""

from __future__ import annotations

import numpy as np

from gpuemu_flow.emulator.ir import KernelProgram
from gpuemu_flow.emulator.polling import RELEASES, is_strong
from gpuemu_flow.emulator.types import Array

_ATOMICS = frozenset({"atom", "red"})


class FlagOrder:
    """Vector clocks of warps at their fences, and the flags that publish them.

    Attributes
    ----------
    is_useful : bool
        True if the kernel may have flags in shared memory; if False, nothing needs to be recorded.
    """

    def __init__(self, program: KernelProgram, cells: int) -> None:
        # Barrier objects have an order of their own, see `SharedRaces.signal`.
        strong = {
            n
            for n, step in enumerate(program.steps)
            if is_strong(step) and step.opcode.base in ("ld", "st", *_ATOMICS)
        }
        self._strong = strong
        self.is_useful = any(program.steps[n].opcode.space in ("shared", "") for n in strong)
        self._atomic = {n for n in strong if program.steps[n].opcode.base in _ATOMICS}
        self._releasing = {
            n for n in strong if RELEASES.intersection(program.steps[n].opcode.segments)
        }
        self._cells = cells
        self._fenced: Array | None = None
        self._carried: Array | None = None

    def fence(self, clock: Array, warps: Array) -> None:
        """Record that some warps executed a fence.

        Parameters
        ----------
        clock : int array
            The vector clock of each warp, in the shape (row, warp, warp). Each block has a row.
        warps : bool array
            True for these warps, in the shape (row, warp).
        """
        if self._fenced is None:
            self._fenced = np.zeros_like(clock)
        own = np.arange(clock.shape[1])
        known = clock.copy()
        known[:, own, own] += 1
        self._fenced = np.where(warps[:, :, None], known, self._fenced)

    def meet(
        self, clock: Array, cells: Array, row: Array, warp: Array, step: int, write: bool
    ) -> None:
        """Record an access to shared memory that may publish or merge vector clocks.

        A write publishes a clock at the accessed cell: the one that the writing warp had at its
        latest fence. A read merges the clocks published at the cell into the clock of the reading
        warp. An atomic does both. An instruction that releases earlier writes counts as preceded by
        a fence. Accesses that are not strong are ignored.

        Parameters
        ----------
        clock : int array
            The vector clock of each warp, in the shape (row, warp, warp). Each block has a row.
        cells, row, warp : int array
            For each lane that takes part: the memory cell that it accesses, its row, and its warp.
        step : int
            Number of the instruction.
        write : bool
            False for a read. For an atomic, this method is called with False, and then with True.
        """
        if step not in self._strong:
            return
        if step in self._releasing:
            warps = np.zeros(clock.shape[:2], bool)
            warps[row, warp] = True
            self.fence(clock, warps)
        if self._fenced is None:
            return
        if self._carried is None:
            self._carried = np.zeros((self._cells, clock.shape[1]), np.int32)
        warps_of = clock.shape[1]
        pairs = np.unique((cells * clock.shape[0] + row) * warps_of + warp)
        rest, warp = np.divmod(pairs, warps_of)
        cells, row = np.divmod(rest, clock.shape[0])
        if write or step in self._atomic:
            np.maximum.at(self._carried, cells, self._fenced[row, warp])
        if not write:
            np.maximum.at(clock, (row, warp), self._carried[cells])
