"""Races of a block's threads between barriers: on shared memory, and on global memory.

The places of a batch are the bytes of its shared memory and, behind them, those of global memory.
On these, only accesses of one block are compared here; `global_races` compares those of blocks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.findings import show_index
from gpuemu_flow.emulator.ir import KernelProgram
from gpuemu_flow.emulator.polling import ORDERS_NOTHING, RELEASES, is_strong
from gpuemu_flow.emulator.state import State
from gpuemu_flow.emulator.types import SIZES, WARP, ActiveLanes, Array
from gpuemu_flow.model.types import THERE

_ACCESSES = frozenset({"ld", "st", "ldu", "atom", "red"})


def smallest_access(program: KernelProgram) -> int:
    """Return the size in bytes of the smallest access, at most 4: the unit of race checks."""
    sizes = [
        SIZES.get(step.opcode.type, 4)
        for step in program.steps
        if step.opcode.base in _ACCESSES and step.opcode.space not in ("param", "local", "const")
    ]
    return min([4, *sizes])


_INDEPENDENT = 70
"""First target (sm_70) on which the lanes of a warp do not execute in lockstep."""


def _sm(program: KernelProgram) -> int:
    """Return the number in a program's target, such as 90 for ``sm_90``; 1000 if it has none."""
    digits = "".join(c for c in program.module.target.partition("_")[2] if c.isdigit())
    return int(digits) if digits else 1000


class SharedRaces:
    """The happens-before order of one batch, by vector clocks of warps.

    Two accesses are in order if a barrier lies between them, or, for accesses by the same warp, a
    ``bar.warp.sync``. Each warp counts its own synchronisations, and receives the counts of other
    warps at barriers. An access by a warp A is stamped with A's count. It happens before an access
    by another warp B if B, when it makes its access, has received a count of A that is greater than
    the stamp. `FlagOrder` covers the order that fences and flags create.
    """

    def __init__(self, state: State, size: int, describe: Callable[[int, int], str]) -> None:
        self._s = state
        self._describe = describe
        self._grain = smallest_access(state.launch.program)
        self.shared_size = size
        cells = (size + len(state.launch.arena.data)) // self._grain + 64
        rows, self._warps = state.count, state.width // WARP
        self._clock: Array = np.zeros((rows, self._warps, self._warps), np.int32)
        lanes = np.arange(rows * state.width)
        self._row = lanes // state.width
        self._warp = lanes % state.width // WARP
        self._signals: dict[int, Array] = {}
        self._keeping: set[int] = set()
        self._size = cells
        self._written = Trace(cells)
        self._reads = (Trace(cells), Trace(cells))
        # Strong accesses, which may meet atomics and other strong accesses at any time.
        self._strong: tuple[Trace, tuple[Trace, Trace]] | None = None
        self._made_flags: FlagOrder | None = None
        # The place that each lane last read at a step, in kernels whose lanes replicate others.
        self._loaded: dict[int, Array] = {}
        self._replicates = state.launch.program.replicates

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
        """Record one access; report it if it races with an access by another thread."""
        self._of_lanes(lanes, good, size, step, write, strong, kept, checked=True)

    def _of_lanes(
        self, lanes: ActiveLanes, good: Array | None, size: int, step: int, write: bool,
        strong: bool, kept: bool, *, checked: bool,
    ) -> None:  # fmt: skip
        me = np.arange(lanes.offsets.size) if lanes.mask is None else np.flatnonzero(lanes.mask)
        offsets = lanes.offsets.astype(np.int64)
        if good is not None:
            me, offsets = me[good], offsets[good]
        if me.size:
            self._access(me, offsets, size, step, write, strong=strong, kept=kept, checked=checked)

    def _access(
        self, me: Array, offsets: Array, size: int, step: int, write: bool, *, strong: bool,
        kept: bool = False, checked: bool = True,
    ) -> None:  # fmt: skip
        row, warp = self._row[me], self._warp[me]
        if kept:
            self._keeping.add(step)
        if strong:
            if self._strong is None:
                self._strong = (Trace(self._size), (Trace(self._size), Trace(self._size)))
            if self._flags.is_useful:
                # Which flag of global memory orders two threads is not checked, as between blocks.
                flags = offsets // self._grain
                if self._is_global(offsets):
                    flags = self.shared_size // self._grain + row
                self._flags.meet(self._clock, flags, row, warp, step, write or kept)
        elif self._replicates and not write and not kept and self._is_global(offsets):
            known = self._loaded.get(step)
            if known is None:
                known = self._loaded[step] = np.full(self._s.full.size, -1, np.int64)
            known[me] = offsets
        now = self._clock[row, warp, warp]
        others = self._conflicting(write, strong) if checked and not kept else ()
        for k in range(0, max(size, self._grain), self._grain):
            cells = (offsets + k) // self._grain
            for trace, verb in others:
                trace.check(self, cells, me, row, warp, step, verb, write, offsets)
            if write:
                mine = self._strong[0] if strong and self._strong else self._written
                mine.record(cells, me + 1, now, step)
            else:
                self._record_read(cells, me, row, warp, now, step, strong)

    def _is_global(self, places: Array) -> bool:
        """Tell whether the places of an access lie in global memory: all or none of them do."""
        return int(places[0]) >= self.shared_size

    def _same_block(self, cells: Array, me: Array, who: Array) -> Array:
        """Mark the pairs of lanes that are to be compared; see the module's docstring."""
        if int(cells[0]) * self._grain < self.shared_size:
            return np.ones(me.shape, bool)
        return np.asarray(me // self._s.width == who // self._s.width)

    def replicas(self, me: Array, who: Array, loads: Array) -> Array:
        """Mark the pairs of lanes that last read the same place at some loads.

        Where lanes hold copies of each other's values, as in Triton's kernels, only one of them
        stores; what another one reads before or after that is not used.
        """
        found = np.zeros(me.shape, bool)
        for step in np.unique(loads).tolist() if self._loaded else ():
            places = self._loaded.get(step)
            if places is not None:
                found |= (loads == step) & (places[me] == places[who]) & (places[me] >= 0)
        return found

    @property
    def _flags(self) -> FlagOrder:
        """Return the order of accesses that flags establish; compute it on the first call."""
        if self._made_flags is None:
            cells = self.shared_size // self._grain + self._s.count
            self._made_flags = FlagOrder(self._s.launch.program, cells)
        return self._made_flags

    def _conflicting(self, write: bool, strong: bool) -> list[tuple[Trace, str]]:
        """List the traces with which an access may conflict, each with a verb for its accesses.

        A trace holds the last access of one kind to each cell. The verb is ``written`` or ``read``.
        """
        found = [(self._written, "written")]
        if write:
            found += [(trace, "read") for trace in self._reads]
        if self._strong is not None and not strong:
            found.append((self._strong[0], "written"))
            found += [(trace, "read") for trace in self._strong[1] if write]
        return [pair for pair in found if pair[0].used]

    def all_traces(self) -> list[tuple[Trace, str]]:
        """List the traces of all kinds of accesses, each with the verb ``written`` or ``read``."""
        return self._conflicting(write=True, strong=False)

    def fence(self, chosen: Array | None) -> None:
        """Record that lanes executed a fence that orders memory for other warps of their blocks."""
        if self._flags.is_useful:
            warps = np.ones(self._clock.shape[:2], bool)
            self._flags.fence(self._clock, warps if chosen is None else self._warps_of(chosen))

    def access_by(
        self, lane: int, places: Array, step: int, *, write: bool, strong: bool = False
    ) -> None:
        """Record an access by an asynchronous copy; report it if it races with another access.

        The thread `lane` started the copy at instruction `step`. The array `places` holds the
        offset of each byte that the copy reads or, if `write`, writes.
        """
        places = np.unique(places // self._grain) * self._grain
        me = np.full(places.size, lane)
        self._access(me, places, self._grain, step, write, strong=strong)

    def _record_read(
        self, cells: Array, me: Array, row: Array, warp: Array, now: Array, step: int, strong: bool
    ) -> None:
        first, second = self._strong[1] if strong and self._strong else self._reads
        who = first.lane(cells)
        free = (who < 0) | (who == me) | ~self._same_block(cells, me, who)
        free |= ~first.unordered(self, cells, row, warp)
        first.record(cells[free], me[free] + 1, now[free], step)
        others = first.lane(cells) != me
        if others.any():
            second.record(cells[others], me[others] + 1, now[others], step)

    def describe(self, place: int, step: int) -> str:
        """Describe a place that an instruction accesses, as an element of a variable."""
        if place >= self.shared_size:
            return self._s.launch.arena.describe(place - self.shared_size)
        return self._describe(place, self._element(step))

    def _element(self, step: int) -> int:
        return SIZES.get(self._s.launch.program.steps[step].opcode.type, 4)

    def _thread(self, flat: int) -> str:
        return f"thread {show_index(self._s.thread_index(flat % self._s.width))}"

    def _did(self, step: int, verb: str) -> str:
        """Return the verb for the access by instruction `step`: ``written`` or ``read``.

        It is `verb`, except for a store of the value that was already in memory. Such a store is
        recorded as a load, but its verb is ``written``.
        """
        return "written" if step in self._keeping else verb

    def _are_strong(self, step: int, other: int) -> bool:
        steps = self._s.launch.program.steps
        return is_strong(steps[step]) and is_strong(steps[other])

    def _in_step(self, me: Array, who: Array, steps: Array, step: int) -> Array:
        """Mark the pairs of accesses that need no barrier, since one warp makes them in lockstep.

        Both accesses of such a pair are strong, and come from the same warp. No pair is marked if
        the program's target GPU does not execute warps in lockstep.
        """
        if _sm(self._s.launch.program) >= _INDEPENDENT:
            return np.zeros(me.shape, bool)
        others = np.unique(steps).tolist()
        strong = np.isin(steps, [n for n in others if self._are_strong(step, n)])
        return np.asarray(strong & (me // WARP == who // WARP))

    def report(
        self, bad: Array, me: Array, who: Array, steps: Array, step: int, verb: str, write: bool,
        offsets: Array,
    ) -> None:  # fmt: skip
        """Report accesses that are not ordered with an earlier access by another thread.

        Pairs of accesses that one warp makes in lockstep are not reported.
        """
        bad = bad & ~self._in_step(me, who, steps, step)
        if not bad.any():
            return
        numbers = me[bad]
        first = int(np.flatnonzero(bad)[0])
        verb, both = self._did(int(steps[first]), verb), self._are_strong(step, int(steps[first]))
        rule = {
            ("written", False): "read-after-write",
            ("written", True): "write-after-write",
            ("read", True): "write-after-read",
        }[verb, write]
        at, other = int(offsets[first]), int(who[first])
        row = other // self._s.width
        self._s.report_lanes(
            "race", f"volatile-{rule}" if both else rule, numbers, step,
            lambda _: f"{'writes' if write else 'reads'} {self.describe(at, step)} "
            f"by {self._thread(int(numbers[0]))}, {verb} by {self._thread(other)} "
            f"(block {show_index(self._s.block_index(row))}) at {THERE} with no barrier in between"
            f"{ORDERS_NOTHING if both else ''}",
            int(steps[first]),
        )  # fmt: skip

    def _warps_of(self, chosen: Array) -> Array:
        return np.asarray(chosen.reshape(len(chosen), self._warps, WARP).any(axis=2))

    def arrive(self, chosen: Array) -> Array:
        """Record a ``bar.arrive``; return the arriving warps' clocks, for the warps that wait."""
        clock = self._clock
        index = np.arange(self._warps)
        warps = self._warps_of(chosen)
        clock[:, index, index] += warps
        known: Array = np.where(warps[:, :, None], clock, 0).max(axis=1)
        return known

    def barrier(self, chosen: Array | None, arrived: Array | None = None) -> None:
        """Join the clocks of the warps that a barrier releases."""
        clock = self._clock
        index = np.arange(self._warps)
        if chosen is None:
            clock[:, index, index] += 1
            clock[...] = clock.max(axis=1, keepdims=True)
            return
        warps = self._warps_of(chosen)
        clock[:, index, index] += warps
        joined = np.where(warps[:, :, None], clock, 0).max(axis=1, keepdims=True)
        if arrived is not None:
            joined = np.maximum(joined, arrived[:, None, :])
        clock[...] = np.where(warps[:, :, None], joined, clock)

    def warp_barrier(self, chosen: Array | None) -> None:
        """Record a ``bar.warp.sync`` of some warps."""
        index = np.arange(self._warps)
        if chosen is None:
            self._clock[:, index, index] += 1
        else:
            warps = self._warps_of(chosen)
            self._clock[:, index, index] += warps

    def signal(self, places: Array, lanes: Array) -> None:
        """Merge the clocks of some lanes' warps into the clocks stored at barrier objects."""
        row, warp = self._row[lanes], self._warp[lanes]
        pairs = np.unique(row * self._warps + warp)
        rows, warps = pairs // self._warps, pairs % self._warps
        self._clock[rows, warps, warps] += 1
        for place, r, w in np.unique(np.stack([places, row, warp], axis=1), axis=0).tolist():
            known, before = self._clock[r, w], self._signals.get(place)
            self._signals[place] = known.copy() if before is None else np.maximum(before, known)

    def learn(self, places: Array, lanes: Array) -> None:
        """Merge the clocks stored at barrier objects into the clocks of some lanes' warps."""
        row, warp = self._row[lanes], self._warp[lanes]
        for place, r, w in np.unique(np.stack([places, row, warp], axis=1), axis=0).tolist():
            left = self._signals.get(place)
            if left is not None:
                self._clock[r, w] = np.maximum(self._clock[r, w], left)

    def knows(self, row: Array, warp: Array, of: Array) -> Array:
        """Look up the counts of some lanes' warps in the vector clocks of other warps.

        The clock of a warp holds the latest count that it has received from each warp of its block.
        """
        return self._clock[row, warp, self._warp[of]]


class Trace:
    """The last access of one kind to each cell: who made it (counted from 1), when, and the step.

    Those are lanes here, and blocks in `global_races`. Most launches need few of their traces, and
    memory for each cell costs time: it comes with the first use.
    """

    who: Array
    when: Array
    step: Array

    def __init__(self, cells: int, *, strong: bool = False) -> None:
        self._cells = cells
        self.strong = strong

    def __getattr__(self, name: str) -> Array:
        if name not in ("who", "when", "step"):
            raise AttributeError(name)
        self.who, self.when, self.step = np.zeros((3, self._cells), np.int32)
        return np.asarray(self.__dict__[name])

    @property
    def used(self) -> bool:
        """Tell whether an access may be in it."""
        return "who" in self.__dict__

    def record(self, cells: Array, me: Array, now: Array | int, step: int) -> None:
        """Record accesses to some cells; each replaces the recorded access to its cell."""
        self.who[cells] = me
        self.when[cells] = now
        self.step[cells] = step

    def lane(self, cells: Array | slice) -> Array:
        """Return the lanes that made the accesses; -1 where there was none."""
        return np.asarray(self.who[cells] - 1)

    def unordered(self, races: SharedRaces, cells: Array, row: Array, warp: Array) -> Array:
        """Mark the accesses that are not ordered after this trace's last access to the
        same cell.
        """
        who = self.lane(cells)
        known = races.knows(row, warp, np.maximum(who, 0))
        return (who >= 0) & (self.when[cells] >= known)

    def check(
        self, races: SharedRaces, cells: Array, me: Array, row: Array, warp: Array, step: int,
        verb: str, write: bool, offsets: Array,
    ) -> None:  # fmt: skip
        """Report accesses that are not ordered after another thread's last access to the
        same cell.
        """
        who = self.lane(cells)
        bad = (who >= 0) & (who != me)
        if not bad.any():
            return
        bad &= self.unordered(races, cells, row, warp) & races._same_block(cells, me, who)
        if bad.any() and (not write or verb == "read"):
            loads = self.step[cells] if write else np.full(me.shape, step)
            bad &= ~races.replicas(me, who, loads)
        if bad.any():
            races.report(bad, me, who, self.step[cells], step, verb, write, offsets)


# The order that fences and flags in shared memory impose on the warps of a block.


_ATOMICS = frozenset({"atom", "red"})


class FlagOrder:
    """Vector clocks of warps at their fences, and the flags that publish them."""

    def __init__(self, program: KernelProgram, cells: int) -> None:
        # Barrier objects have an order of their own, see `SharedRaces.signal`.
        strong = {
            n
            for n, step in enumerate(program.steps)
            if is_strong(step) and step.opcode.base in ("ld", "st", *_ATOMICS)
        }
        self._strong = strong
        self.is_useful = any(
            program.steps[n].opcode.space in ("shared", "global", "") for n in strong
        )
        self._atomic = {n for n in strong if program.steps[n].opcode.base in _ATOMICS}
        self._releasing = {
            n for n in strong if RELEASES.intersection(program.steps[n].opcode.segments)
        }
        self._cells = cells
        self._fenced: Array | None = None
        self._carried: Array | None = None

    def fence(self, clock: Array, warps: Array) -> None:
        """Record that some warps executed a fence."""
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


# Races between barriers; most intervals are cleared without an exact analysis.


MOST_LANES = 1 << 22
"""Limit on lanes of logged accesses; beyond it, the log is examined before its interval ends."""

_ANY_LANE, _SEVERAL = -1, -2
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
        me: Array | int = _ANY_LANE if event.strong else self._owners(lanes, good)
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
        me: Array | int = _ANY_LANE if event.strong else self._owners(lanes, good)
        for cells in self._cells(lanes, good, event.size):
            owner = self._owner[cells]
            if ((owner != 0) & (owner != me)).any():
                return False
        return True
