"""Races between blocks, found without recording each load from a buffer that no block writes.

Most kernels read some buffers and write others. For a load from a buffer that nothing has written
so far, only the buffer is recorded. If such a buffer is written later, the launch is made once more
with the loads from it recorded.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.global_races import GlobalRaces
from gpuemu_flow.emulator.registry import ActiveLanes
from gpuemu_flow.emulator.state import KernelLaunch, State
from gpuemu_flow.emulator.types import Array

MOST_PENDING = 1 << 20
"""Largest number of cells whose last store is kept only in the list of pending stores."""


class _Store(Struct):
    """A store to memory cells that no other block had written before."""

    cells: list[Array | slice]
    time: int
    step: int


class MoreWrittenError(Exception):
    """Raised on a write to a buffer whose loads were not recorded: the launch must be repeated.

    `written` has the numbers of the buffers that are known to be written.
    """

    def __init__(self, written: frozenset[int]) -> None:
        super().__init__()
        self.written = written


class QuickGlobalRaces(GlobalRaces):
    """Races between blocks; plain loads are recorded only from buffers that a block has written."""

    def __init__(self, launch: KernelLaunch, written: frozenset[int] = frozenset()) -> None:
        super().__init__(launch, written)
        self._only_read: set[int] = set()
        self._recorded: set[int] = set()
        self._ids: Array | None = None
        self._everyone: Array = np.zeros(0, np.int32)
        self._shift = self._grain.bit_length() - 1
        self._pending: list[_Store] = []
        self._pending_cells = 0

    def access(
        self,
        state: State,
        lanes: ActiveLanes,
        good: Array | None,
        size: int,
        step: int,
        *,
        write: bool,
        strong: bool,
        same: Callable[[], Array] | None = None,
    ) -> bool:
        """Record an access. For a plain load from unwritten buffers, record only the buffers.

        Parameters and result are those of `GlobalRaces.access`.

        Raises MoreWrittenError.
        """
        offsets = lanes.offsets if good is None else lanes.offsets[good]
        if not offsets.size:
            return False
        touched = self._touched(offsets, size)
        if write and self._only_read & touched:
            raise MoreWrittenError(frozenset(self._changed | touched))
        if write:
            self._changed |= touched
            quick = not strong and not self._recorded & touched
            if strong:
                self._recorded |= touched
            if quick and (
                self._launch.blocks == 1 or self._write(state, lanes, good, offsets, size, step)
            ):
                self._within_block(state, lanes, good, size, step, write, strong, same)
                return False
        elif not strong and not self._changed & touched:
            self._only_read |= touched
            return False
        else:
            self._recorded |= touched
        self._record_pending()
        return super().access(
            state, lanes, good, size, step, write=write, strong=strong, same=same
        )  # fmt: skip

    def collide(self, state: State, lanes: ActiveLanes, lost: Array, step: int) -> None:
        """Report blocks that wrote different values to the same address in one instruction."""
        self._record_pending()
        super().collide(state, lanes, lost, step)

    def _record_pending(self) -> None:
        """Record the times and steps of pending stores.

        The time and step of a store matter only to an access that may conflict with the store.
        So recording them is put off as long as possible.
        """
        for store in self._pending:
            for cells in store.cells:
                self._written.when[cells] = store.time
                self._written.step[cells] = store.step
        self._pending.clear()
        self._pending_cells = 0

    def _touched(self, offsets: Array, size: int) -> set[int]:
        """List the buffers that an access may touch, by number."""
        low, high = int(offsets.min()), int(offsets.max()) + size
        return self._launch.arena.overlapping(low, high)

    def _blocks(self, state: State, mask: Array | None) -> Array:
        if mask is not None:
            return super()._blocks(state, mask)
        if self._ids is not state.block_ids:
            self._ids, self._everyone = state.block_ids, super()._blocks(state, None)
        return self._everyone

    def _write(
        self,
        state: State,
        lanes: ActiveLanes,
        good: Array | None,
        offsets: Array,
        size: int,
        step: int,
    ) -> bool:
        """Record a store and return True, or return False if it may conflict with another block."""
        me = self._blocks(state, lanes.mask)
        me = me if good is None else me[good]
        first = offsets.astype(np.int64) >> self._shift
        low, count = int(first[0]), first.size
        dense = int(first[-1]) - low == count - 1 and bool((np.diff(first) == 1).all())
        rows: list[Array | slice] = []
        for k in range(max(1, size // self._grain)):
            cells = slice(low + k, low + k + count) if dense else first + k
            writer = self._written.block[cells]
            if writer.any() and ((writer > 0) & (writer != me)).any():
                return False
            rows.append(cells)
        before = None if dense else [self._written.block[cells] for cells in rows]
        for k, cells in enumerate(rows):
            self._written.block[cells] = me
            if before is not None and (self._written.block[cells] != me).any():
                for old, undone in zip(before[: k + 1], rows, strict=False):
                    self._written.block[undone] = old
                return False
        self._time += 1
        self._pending.append(_Store(rows, self._time, step))
        self._pending_cells += 16 if dense else count * len(rows)
        if self._pending_cells > MOST_PENDING:
            self._record_pending()
        return True
