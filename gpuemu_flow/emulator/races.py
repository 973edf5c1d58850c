"""Races on shared memory between barriers, and on global memory between blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuemu_flow.emulator.cluster_order import ClusterOrder
from gpuemu_flow.emulator.clusters import size_of
from gpuemu_flow.emulator.findings import show_index
from gpuemu_flow.emulator.ir import KernelProgram
from gpuemu_flow.emulator.lanes import ActiveLanes
from gpuemu_flow.emulator.state import KernelLaunch, State
from gpuemu_flow.emulator.types import SIZES, WARP, Array
from gpuemu_flow.kernel_findings import THERE

_ACCESSES = frozenset({"ld", "st", "ldu", "atom", "red"})


def _differing(same: Callable[[], Array] | None, good: Array | None) -> Callable[[Array], Array]:
    """Make a filter of the lanes that change the stored value.

    The stored value is read only when a lane is in doubt, which is rare.
    """
    found: list[Array] = []

    def keep(bad: Array) -> Array:
        if same is None or not bad.any():
            return bad
        if not found:
            alike = same()
            found.append(~(alike if good is None else alike[good]))
        return bad & found[0]

    return keep


def smallest_access(program: KernelProgram) -> int:
    """Return the bytes of the smallest memory access, at most 4, as the unit of race checks."""
    sizes = [
        SIZES.get(step.opcode.type, 4)
        for step in program.steps
        if step.opcode.base in _ACCESSES and step.opcode.space not in ("param", "local", "const")
    ]
    return min([4, *sizes])


class SharedRaces:
    """The happens-before order of one batch, by vector clocks of warps.

    Two accesses are in order when a barrier or ``bar.warp.sync`` lies between them. Each warp
    counts its own synchronisations, and learns the counts of other warps at barriers. An access
    is stamped with its warp's count. It happens before an access of another warp if that warp
    has by then learnt a later count of the first warp.
    """

    def __init__(self, state: State, size: int, describe: Callable[[int, int], str]) -> None:
        self._s = state
        self._describe = describe
        self._grain = smallest_access(state.launch.program)
        cells = size // self._grain + 64
        rows, self._warps = state.count, state.width // WARP
        self._clock: Array = np.zeros((rows, self._warps, self._warps), np.int32)
        lanes = np.arange(rows * state.width)
        self._row = lanes // state.width
        self._warp = lanes % state.width // WARP
        self._signals: dict[int, Array] = {}
        self._keeping: set[int] = set()
        self._written = _Trace(cells)
        self._read = _Trace(cells)
        self._read_also = _Trace(cells)

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
        """Record one access, and report those that no barrier orders.

        Parameters
        ----------
        lanes : ActiveLanes
            Offsets into the batch's shared memory, one for each active lane.
        good : array or None
            Lanes that take part in the access.
        size, step : int
        write, strong : bool
        kept : bool
            True for stores that do not change the value, recorded with `write` False: like a load,
            such a store races only with stores that change the value.
        """
        me = np.arange(lanes.offsets.size) if lanes.mask is None else np.flatnonzero(lanes.mask)
        offsets = lanes.offsets.astype(np.int64)
        if good is not None:
            me, offsets = me[good], offsets[good]
        if me.size:
            self._access(me, offsets, size, step, write, strong=strong, kept=kept)

    def _access(
        self, me: Array, offsets: Array, size: int, step: int, write: bool, *, strong: bool,
        kept: bool = False,
    ) -> None:  # fmt: skip
        row, warp = self._row[me], self._warp[me]
        now = self._clock[row, warp, warp]
        if kept:
            self._keeping.add(step)
        for k in range(0, max(size, self._grain), self._grain):
            cells = (offsets + k) // self._grain
            if kept:
                self._record_read(cells, me, row, warp, now, step, strong)
                continue
            self._written.check(self, cells, me, row, warp, strong, step, "written", write, offsets)
            if write:
                for trace in (self._read, self._read_also):
                    trace.check(self, cells, me, row, warp, strong, step, "read", True, offsets)
                self._written.record(cells, me, now, step, strong)
            else:
                self._record_read(cells, me, row, warp, now, step, strong)

    def access_by(
        self, lane: int, places: Array, step: int, *, write: bool, strong: bool = False
    ) -> None:
        """Record the bytes, by offset, that a copy started by one thread reads or writes."""
        places = np.unique(places // self._grain) * self._grain
        me = np.full(places.size, lane)
        self._access(me, places, self._grain, step, write, strong=strong)

    def _record_read(
        self, cells: Array, me: Array, row: Array, warp: Array, now: Array, step: int, strong: bool
    ) -> None:
        first = self._read
        free = (first.who[cells] < 0) | (first.who[cells] == me)
        free |= ~first.unordered(self, cells, row, warp)
        first.record(cells[free], me[free], now[free], step, strong)
        others = first.who[cells] != me
        if others.any():
            self._read_also.record(cells[others], me[others], now[others], step, strong)

    def _element(self, step: int) -> int:
        return SIZES.get(self._s.launch.program.steps[step].opcode.type, 4)

    def _thread(self, flat: int) -> str:
        return f"thread {show_index(self._s.thread_index(flat % self._s.width))}"

    def _did(self, step: int, verb: str) -> str:
        """Return the verb for an access: ``written`` for a store that is recorded as a load."""
        return "written" if step in self._keeping else verb

    def report(
        self, bad: Array, me: Array, who: Array, steps: Array, step: int, verb: str, write: bool,
        offsets: Array,
    ) -> None:  # fmt: skip
        """Report accesses that another thread's access is not ordered with."""
        numbers = me[bad]
        first = int(np.flatnonzero(bad)[0])
        verb = self._did(int(steps[first]), verb)
        rule = {
            ("written", False): "read-after-write",
            ("written", True): "write-after-write",
            ("read", True): "write-after-read",
        }[verb, write]
        at, other = int(offsets[first]), int(who[first])
        row = other // self._s.width
        self._s.report_lanes(
            "race", rule, numbers, step,
            lambda _: f"{'writes' if write else 'reads'} {self._describe(at, self._element(step))} "
            f"by {self._thread(int(numbers[0]))}, {verb} by {self._thread(other)} "
            f"(block {show_index(self._s.block_index(row))}) at {THERE} with no barrier in between",
            int(steps[first]),
        )  # fmt: skip

    def _warps_of(self, chosen: Array) -> Array:
        return np.asarray(chosen.reshape(len(chosen), self._warps, WARP).any(axis=2))

    def arrive(self, chosen: Array) -> Array:
        """Record a ``bar.arrive``; return the clocks of the arriving warps, for those that wait."""
        clock = self._clock
        index = np.arange(self._warps)
        warps = self._warps_of(chosen)
        clock[:, index, index] += warps
        known: Array = np.where(warps[:, :, None], clock, 0).max(axis=1)
        return known

    def barrier(self, chosen: Array | None, arrived: Array | None = None) -> None:
        """Join the clocks of the warps that a barrier releases; `chosen` None means all warps."""
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
        """Count a ``bar.warp.sync`` of some warps."""
        index = np.arange(self._warps)
        if chosen is None:
            self._clock[:, index, index] += 1
        else:
            warps = self._warps_of(chosen)
            self._clock[:, index, index] += warps

    def signal(self, places: Array, lanes: Array) -> None:
        """Store the clocks of some lanes' warps at barrier objects, by their places."""
        row, warp = self._row[lanes], self._warp[lanes]
        pairs = np.unique(row * self._warps + warp)
        rows, warps = pairs // self._warps, pairs % self._warps
        self._clock[rows, warps, warps] += 1
        for place, r, w in np.unique(np.stack([places, row, warp], axis=1), axis=0).tolist():
            known, before = self._clock[r, w], self._signals.get(place)
            self._signals[place] = known.copy() if before is None else np.maximum(before, known)

    def learn(self, places: Array, lanes: Array) -> None:
        """Merge the clocks stored at barrier objects into those of some lanes' warps."""
        row, warp = self._row[lanes], self._warp[lanes]
        for place, r, w in np.unique(np.stack([places, row, warp], axis=1), axis=0).tolist():
            left = self._signals.get(place)
            if left is not None:
                self._clock[r, w] = np.maximum(self._clock[r, w], left)

    def knows(self, row: Array, warp: Array, of: Array) -> Array:
        """Look up, in the vector clocks of warps, the entries of other lanes' warps."""
        return self._clock[row, warp, self._warp[of]]


class _Trace:
    """The last access of one kind to each cell: lane, time, instruction and strength."""

    def __init__(self, cells: int) -> None:
        self.who: Array = np.full(cells, -1, np.int32)
        self.when: Array = np.zeros(cells, np.int32)
        self.step: Array = np.zeros(cells, np.int32)
        self._strong: Array = np.zeros(cells, bool)

    def record(self, cells: Array, me: Array, now: Array, step: int, strong: bool) -> None:
        self.who[cells] = me
        self.when[cells] = now
        self.step[cells] = step
        self._strong[cells] = strong

    def unordered(self, races: SharedRaces, cells: Array, row: Array, warp: Array) -> Array:
        """Mark the cells whose last access is not ordered before some lanes."""
        who = self.who[cells]
        known = races.knows(row, warp, np.maximum(who, 0))
        return (who >= 0) & (self.when[cells] >= known)

    def check(
        self, races: SharedRaces, cells: Array, me: Array, row: Array, warp: Array, strong: bool,
        step: int, verb: str, write: bool, offsets: Array,
    ) -> None:  # fmt: skip
        """Report lanes whose access is not ordered with the last one of another thread."""
        who = self.who[cells]
        bad = (who >= 0) & (who != me)
        if not bad.any():
            return
        bad &= self.unordered(races, cells, row, warp)
        if strong:
            bad &= ~self._strong[cells]
        if bad.any():
            races.report(bad, me, who, self.step[cells], step, verb, write, offsets)


class GlobalRaces:
    """Races between blocks on global memory, over all batches of a launch.

    Accesses of two blocks are in order when the first block released after its access (a fence
    and then an atomic, or an atomic with release semantics) and the second acquired later (an
    atomic or a volatile or acquire load). Which variable carried the signal is not looked at.
    """

    def __init__(self, launch: KernelLaunch) -> None:
        self._launch = launch
        self._grain = smallest_access(launch.program)
        cells = len(launch.arena.data) // self._grain + 64
        self._time = 1
        self._writer: Array = np.zeros(cells, np.int32)
        self._written: Array = np.zeros(cells, np.int32)
        self._write_step: Array = np.zeros(cells, np.int32)
        self._strong: Array = np.zeros(cells, bool)
        # Two readers of each cell, so that at least one is another block than a later writer.
        self._readers = [np.zeros(cells, np.int32) for _ in range(2)]
        self._read_times = [np.zeros(cells, np.int32) for _ in range(2)]
        self._read_strong = [np.zeros(cells, bool) for _ in range(2)]
        self._fenced: Array = np.zeros(launch.all_blocks + 1, np.int32)
        self._released: Array = np.zeros(launch.all_blocks + 1, np.int32)
        self._acquired: Array = np.zeros(launch.all_blocks + 1, np.int32)
        members = size_of(launch.cluster)
        self._clusters = ClusterOrder(launch, members) if members > 1 else None

    def _blocks(self, state: State, mask: Array | None) -> Array:
        numbers = np.arange(state.full.size) if mask is None else np.flatnonzero(mask)
        found: Array = (state.block_ids[numbers // state.width] + 1).astype(np.int32)
        return found

    def fence(self, state: State, mask: Array | None) -> None:
        """Record that lanes executed a fence that other blocks can see."""
        self._time += 1
        self._fenced[np.unique(self._blocks(state, mask))] = self._time

    def signal(self, state: State, mask: Array | None, *, releases: bool) -> None:
        """Record that lanes executed an atomic or a strong access."""
        self._time += 1
        blocks = np.unique(self._blocks(state, mask))
        self._acquired[blocks] = self._time
        self._released[blocks] = self._time if releases else self._fenced[blocks]

    def acquire(self, state: State, mask: Array) -> None:
        """Record that lanes waited for what other blocks of their cluster released."""
        self._time += 1
        self._acquired[np.unique(self._blocks(state, mask))] = self._time

    def cluster_arrive(self, state: State, group: Array) -> None:
        """Record that threads arrived at the barrier of their cluster."""
        assert self._clusters is not None
        self._time += 1
        self._clusters.arrive(np.unique(self._blocks(state, group)), self._time)

    def cluster_complete(self, state: State, clusters: Array) -> None:
        """Record that the barrier of some clusters of a batch is complete."""
        assert self._clusters is not None
        numbers = state.block_ids.reshape(-1, state.cluster_size)[clusters]
        self._clusters.complete(numbers.reshape(-1) + 1)

    def cluster_pass(self, state: State, group: Array) -> None:
        """Record that threads passed the barrier of their cluster."""
        assert self._clusters is not None
        rows, size = np.flatnonzero(group.any(axis=1)), state.cluster_size
        if not rows.size:
            return
        by_rank = np.argsort(state.ranks.reshape(-1, size), axis=1)
        members = np.take_along_axis(state.block_ids.reshape(-1, size), by_rank, axis=1) + 1
        self._clusters.wait(state.block_ids[rows] + 1, members[rows // size])

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
        """Record one access, and report those that nothing orders with another block's.

        Parameters
        ----------
        state : State
        lanes : ActiveLanes
        good : array or None
        size, step : int
        write, strong : bool
        same : callable or None
            Returns a mask of the active lanes whose store does not change the value.

        Returns
        -------
        bool
            True if lanes of several blocks wrote to one place.
        """
        if strong:
            self.signal(state, lanes.mask, releases=False)
        me = self._blocks(state, lanes.mask)
        offsets = lanes.offsets.astype(np.int64)
        numbers = np.arange(len(me)) if lanes.mask is None else np.flatnonzero(lanes.mask)
        if good is not None:
            me, offsets, numbers = me[good], offsets[good], numbers[good]
        if not me.size:
            return False
        self._time += 1
        collided = False
        differing = _differing(same, good)
        for k in range(0, max(size, self._grain), self._grain):
            cells = (offsets + k) // self._grain
            writer = self._writer[cells]
            bad = (writer > 0) & (writer != me)
            if bad.any():
                bad &= ~self._ordered(writer, self._written[cells], me)
                bad &= ~(self._strong[cells] & strong)
                bad = differing(bad)
                self._report(state, bad, numbers, writer, step, offsets, cells, write, "written")
            if write:
                for slot in (0, 1):
                    reader = self._readers[slot][cells]
                    bad = (reader > 0) & (reader != me)
                    if bad.any():
                        bad &= ~self._ordered(reader, self._read_times[slot][cells], me)
                        bad &= ~(self._read_strong[slot][cells] & strong)
                        bad = differing(bad)
                        self._report(
                            state, bad, numbers, reader, step, offsets, cells, True, "read"
                        )
                self._writer[cells] = me
                self._written[cells] = self._time
                self._write_step[cells] = step
                self._strong[cells] = strong
                collided |= bool((self._writer[cells] != me).any())
            else:
                reader = self._readers[0][cells]
                taken = (reader > 0) & (reader != me)
                if taken.any():
                    taken &= ~self._ordered(reader, self._read_times[0][cells], me)
                for slot, chosen in ((0, ~taken), (1, taken)):
                    self._readers[slot][cells[chosen]] = me[chosen]
                    self._read_times[slot][cells[chosen]] = self._time
                    self._read_strong[slot][cells[chosen]] = strong
                beaten = self._readers[0][cells] != me
                self._readers[1][cells[beaten]] = me[beaten]
                self._read_times[1][cells[beaten]] = self._time
                self._read_strong[1][cells[beaten]] = strong
        return collided

    def collide(self, state: State, lanes: ActiveLanes, lost: Array, step: int) -> None:
        """Report blocks that wrote different values to one place in one instruction.

        Parameters
        ----------
        state : State
        lanes : ActiveLanes
        lost : array
            Active lanes whose value was overwritten by that of another lane.
        step : int
        """
        if not lost.any():
            return
        cells = lanes.offsets.astype(np.int64)[lost] // self._grain
        me = self._blocks(state, lanes.mask)[lost]
        numbers = np.arange(lost.size) if lanes.mask is None else np.flatnonzero(lanes.mask)
        winner = self._writer[cells]
        self._report(
            state, winner != me, numbers[lost], winner, step,
            lanes.offsets.astype(np.int64)[lost], cells, True, "written",
        )  # fmt: skip

    def _ordered(self, before: Array, when: Array, me: Array) -> Array:
        released = self._released[before]
        found: Array = (released >= when) & (self._acquired[me] >= released)
        if self._clusters is not None:
            found = found | self._clusters.ordered(before, when, me)
        return found

    def _report(
        self, state: State, bad: Array, numbers: Array, other: Array, step: int, offsets: Array,
        cells: Array, write: bool, verb: str,
    ) -> None:  # fmt: skip
        if not bad.any():
            return
        first = int(np.flatnonzero(bad)[0])
        rule = "between-blocks-" + (
            "read-after-write" if not write
            else "write-after-write" if verb == "written" else "write-after-read"
        )  # fmt: skip
        written = verb == "written"
        there = f" at {THERE}" if written else ""
        x, y, _ = self._launch.grid
        linear = (int(other[first]) - 1) % self._launch.blocks
        block = show_index((linear % x, linear // x % y, linear // (x * y)))
        where = self._launch.arena.describe(int(offsets[first]))
        state.report_lanes(
            "race", rule, numbers[bad], step,
            lambda _: f"{'writes' if write else 'reads'} {where} by "
            f"{state.who(int(numbers[first]))}, {verb} by block {block}{there} "
            "with nothing that orders the blocks",
            int(self._write_step[cells[first]]) if written else -1,
        )  # fmt: skip
