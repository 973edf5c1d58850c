"""Races between barriers; most intervals are cleared without an exact analysis.

An interval lies between two barriers that all threads join. Its accesses are logged. At the second
barrier, the log is dropped if it has no writes, or if no thread touched bytes that another thread
wrote. Any other log is passed, access by access, to `SharedRaces`, which finds races exactly: it
takes into account that ``bar.warp.sync`` and fences, too, order accesses.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.races import SharedRaces
from gpuemu_flow.emulator.registry import ActiveLanes
from gpuemu_flow.emulator.state import State
from gpuemu_flow.emulator.types import Array

MOST_LANES = 1 << 22
"""Limit on lanes of logged accesses; beyond it, the log is examined before its interval ends."""

_ATOMICS, _SEVERAL = -1, -2
"""Owners of cells to which any lanes made strong accesses, and that several lanes read."""


class _Access(Struct):
    """One logged access, with the arguments of `LoggedRaces.access`."""

    lanes: ActiveLanes
    good: Array | None
    size: int
    step: int
    write: bool
    strong: bool
    kept: bool


class _WarpBarrier(Struct):
    """A ``bar.warp.sync`` of the lanes in a mask, or of all lanes if there is no mask."""

    chosen: Array | None


class _Fence(Struct):
    """A fence of the lanes in a mask, or of all lanes if there is no mask."""

    chosen: Array | None


class LoggedRaces(SharedRaces):
    """The happens-before order of one batch, computed only for intervals that may have a race."""

    def __init__(self, state: State, size: int, describe: Callable[[int, int], str]) -> None:
        super().__init__(state, size, describe)
        self._log: list[_Access | _WarpBarrier | _Fence] = []
        self._noted = 0
        self._wrote = False
        self._exact = False
        self._owner: Array = np.zeros(self._size, np.int32)
        self._owned: list[Array] = []
        self._everyone: Array = np.arange(1, state.full.size + 1, dtype=np.int32)

    def access(
        self,
        lanes: ActiveLanes,
        good: Array | None,
        size: int,
        step: int,
        *,
        write: bool,
        strong: bool,
        kept: bool = False,
    ) -> None:
        """Log an access; after `make_exact`, check it at once instead. See `SharedRaces.access`."""
        made = _Access(lanes, good, size, step, write, strong, kept)
        if self._exact:
            self._replay(made)
            return
        self._log.append(made)
        self._wrote |= write
        self._noted += lanes.offsets.size + 256
        if self._noted > MOST_LANES:
            self._settle()

    def barrier(self, chosen: Array | None, arrived: Array | None = None) -> None:
        """Join the vector clocks of the warps that a barrier releases."""
        if chosen is None:
            self.end_interval()
            self._exact = False
        else:
            self.make_exact()
        super().barrier(chosen, arrived)

    def arrive(self, chosen: Array) -> Array:
        """Switch to exact checks, and record a ``bar.arrive``; see `SharedRaces.arrive`."""
        self.make_exact()
        return super().arrive(chosen)

    def warp_barrier(self, chosen: Array | None) -> None:
        """Log a ``bar.warp.sync`` of some warps; after `make_exact`, record it at once instead."""
        if self._exact:
            super().warp_barrier(chosen)
        else:
            self._log.append(_WarpBarrier(chosen))
            self._noted += 256

    def fence(self, chosen: Array | None) -> None:
        """Log a fence; after `make_exact`, record it at once instead."""
        if self._exact:
            super().fence(chosen)
        else:
            self._log.append(_Fence(chosen))
            self._noted += 256

    def signal(self, places: Array, lanes: Array) -> None:
        """Switch to exact checks, and store the clocks of warps at barrier objects.

        For the parameters, see `SharedRaces.signal`.
        """
        self.make_exact()
        super().signal(places, lanes)

    def learn(self, places: Array, lanes: Array) -> None:
        """Switch to exact checks, and merge clocks stored at barrier objects into those of warps.

        For the parameters, see `SharedRaces.learn`.
        """
        self.make_exact()
        super().learn(places, lanes)

    def access_by(
        self, lane: int, places: Array, step: int, *, write: bool, strong: bool = False
    ) -> None:
        """Record the bytes that a copy, started by one thread, reads or writes."""
        self.make_exact()
        super().access_by(lane, places, step, write=write, strong=strong)

    def end_interval(self) -> None:
        """Examine the logged interval, which ends here, for races; then clear the log."""
        log, wrote = self._log, self._wrote
        self._log, self._noted, self._wrote = [], 0, False
        if wrote and not self._are_apart(log):
            for event in log:
                self._replay(event)
        if sum(cells.size for cells in self._owned) > self._owner.size >> 4:
            self._owner = np.zeros(self._size, np.int32)
        for cells in self._owned:
            self._owner[cells] = 0
        self._owned.clear()

    def _settle(self) -> None:
        """Examine the log so far; keep only who accessed what, unless there may be a race."""
        if not self._wrote or not self._are_apart(self._log):
            self.make_exact()
            return
        log, self._log, self._noted = self._log, [], 0
        for event in log:
            self._replay(event, checked=False)
            if isinstance(event, _Access) and not event.write and not self._own(event):
                lanes, good = self._whole(event)
                for cells in self._cells(lanes, good, event.size):
                    self._owned.append(cells)
                    self._owner[cells] = _SEVERAL

    def make_exact(self) -> None:
        """Replay the accesses since the last barrier of all threads; check later ones at once."""
        if self._exact:
            return
        self._exact = True
        log = self._log
        self._log, self._noted, self._wrote = [], 0, False
        for event in log:
            self._replay(event)

    def _replay(self, event: _Access | _WarpBarrier | _Fence, *, checked: bool = True) -> None:
        if isinstance(event, _WarpBarrier):
            super().warp_barrier(event.chosen)
            return
        if isinstance(event, _Fence):
            super().fence(event.chosen)
            return
        lanes, good = self._whole(event)
        self._of_lanes(
            lanes, good, event.size, event.step, event.write, event.strong, event.kept,
            checked=checked,
        )  # fmt: skip

    def _whole(self, event: _Access) -> tuple[ActiveLanes, Array | None]:
        """Expand a logged access so that each active lane has an entry of its own.

        Lanes that load from the same address may be logged with one entry for all of them.
        """
        lanes, good = event.lanes, event.good
        full = self._s.full.shape
        if lanes.mask is not None or lanes.offsets.size == self._s.full.size:
            return lanes, good
        offsets = np.broadcast_to(lanes.offsets.reshape(lanes.shape), full).reshape(-1)
        if good is not None and good.size != offsets.size:
            good = np.broadcast_to(good.reshape(lanes.shape), full).reshape(-1)
        return ActiveLanes(offsets, None, full), good

    def _cells(self, lanes: ActiveLanes, good: Array | None, size: int) -> list[Array]:
        offsets = lanes.offsets if good is None else lanes.offsets[good]
        first = offsets.astype(np.int64) // self._grain
        return [first + k for k in range(max(1, size // self._grain))]

    def _owners(self, lanes: ActiveLanes, good: Array | None) -> Array:
        """Return the numbers of the lanes that take part in an access, counted from 1."""
        me = self._everyone if lanes.mask is None else self._everyone[lanes.mask.reshape(-1)]
        return me if good is None else me[good]

    def _are_apart(self, log: list[_Access | _WarpBarrier | _Fence]) -> bool:
        """Tell whether no thread accessed bytes that another thread wrote, atomics aside."""
        accesses = [event for event in log if isinstance(event, _Access)]
        return all(self._own(event) for event in accesses if event.write) and all(
            self._reads_own(event) for event in accesses if not event.write
        )

    def _own(self, event: _Access) -> bool:
        """Mark the cells of an access as its lanes'; return False if they are another lane's."""
        lanes, good = self._whole(event)
        me: Array | int = _ATOMICS if event.strong else self._owners(lanes, good)
        for cells in self._cells(lanes, good, event.size):
            before = self._owner[cells]
            if before.any() and ((before != 0) & (before != me)).any():
                return False
            self._owned.append(cells)
            self._owner[cells] = me
            if (self._owner[cells] != me).any():
                return False
        return True

    def _reads_own(self, event: _Access) -> bool:
        small = self._cells(event.lanes, None, event.size)
        if not any(self._owner[cells].any() for cells in small):
            return True
        lanes, good = self._whole(event)
        me: Array | int = _ATOMICS if event.strong else self._owners(lanes, good)
        for cells in self._cells(lanes, good, event.size):
            owner = self._owner[cells]
            if ((owner != 0) & (owner != me)).any():
                return False
        return True
