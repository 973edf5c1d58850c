"""Races on global memory: between blocks here, between the threads of a block by `races`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.blocks import defined_and_used
from gpuemu_flow.emulator.clusters import cluster_numbers, ranks, size_of
from gpuemu_flow.emulator.findings import show_index
from gpuemu_flow.emulator.polling import ORDERS_NOTHING, RELEASES, is_strong
from gpuemu_flow.emulator.races import Trace, smallest_access
from gpuemu_flow.emulator.state import KernelLaunch, State
from gpuemu_flow.emulator.types import WARP, ActiveLanes, Array
from gpuemu_flow.model.types import THERE


def _differing(same: Callable[[], Array] | None, good: Array | None) -> Callable[[Array], Array]:
    """Return a function that removes lanes from a mask if their store does not change the value.

    The mask has one entry for each lane that may access the memory. Values are compared only if at
    least one entry is set, which is rare.
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


class GlobalRaces:
    """Races on global memory, over all batches of a launch.

    Accesses of two blocks are ordered if the first block released after its access (by a fence and
    then an atomic, or by an atomic with release semantics) and the second block acquired later (by
    an atomic, an acquire load, or a load that polls: see `polling`). Whether the two blocks used
    the same variable is not checked.
    """

    def __init__(self, launch: KernelLaunch, written: frozenset[int] = frozenset()) -> None:
        self._launch = launch
        self._changed = set(written)
        self._grain = smallest_access(launch.program)
        cells = len(launch.arena.data) // self._grain + 64
        self._time = 1
        self._written = Trace(cells)
        # Two readers of each cell: a later writer is a different block than at least one of them.
        self._reads = [Trace(cells) for _ in range(2)]
        # Strong accesses, which may meet atomics and other strong accesses at any time.
        self._strong_written = Trace(cells, strong=True)
        self._strong_before = Trace(cells, strong=True)
        self._strong_reads = [Trace(cells, strong=True) for _ in range(2)]
        self._met_strong = False
        # Where blocks stored the same value to one cell: when each did, and when cells changed.
        self._stored: dict[tuple[int, int], int] = {}
        self._changed_at: dict[int, int] = {}
        self._synced: Array = np.zeros(launch.all_blocks + 1, np.int32)
        self._fenced: Array = np.zeros(launch.all_blocks + 1, np.int32)
        self._released: Array = np.zeros(launch.all_blocks + 1, np.int32)
        self._acquired: Array = np.zeros(launch.all_blocks + 1, np.int32)
        members = size_of(launch.cluster)
        self._clusters = ClusterOrder(launch, members) if members > 1 else None

    @cached_property
    def _returning(self) -> Array:
        """Mark the steps that are atomics whose result is used."""
        steps = self._launch.program.steps
        flows = map(defined_and_used, steps)
        read = {n for defined, used in flows for n in used if n not in defined}
        return np.array(
            [s.opcode.base == "atom" and bool(read.intersection(defined_and_used(s)[0]))
             for s in steps]
        )  # fmt: skip

    def _blocks(self, state: State, mask: Array | None) -> Array:
        numbers = np.arange(state.full.size) if mask is None else np.flatnonzero(mask)
        found: Array = (state.block_ids[numbers // state.width] + 1).astype(np.int32)
        return found

    def fence(self, state: State, mask: Array | None) -> None:
        """Record that lanes executed a fence whose effect reaches other blocks."""
        self._time += 1
        self._fenced[np.unique(self._blocks(state, mask))] = self._time

    def signal(self, state: State, mask: Array | None, *, releases: bool) -> None:
        """Record that lanes executed an atomic or another strong access.

        `releases` is True if the access itself publishes earlier writes, without a fence before it.
        """
        self._time += 1
        blocks = np.unique(self._blocks(state, mask))
        self._acquired[blocks] = self._time
        published = self._time if releases else self._fenced[blocks]
        self._released[blocks] = np.maximum(self._released[blocks], published)

    def acquire(self, state: State, mask: Array) -> None:
        """Record that lanes can now see all writes that other blocks have released."""
        self._time += 1
        self._acquired[np.unique(self._blocks(state, mask))] = self._time

    def barrier(self, state: State, released: Array | None) -> None:
        """Record that a barrier released threads of some blocks."""
        self._time += 1
        rows = slice(None) if released is None else released.any(axis=1)
        self._synced[state.block_ids[rows] + 1] = self._time

    def cluster_arrive(self, state: State, group: Array) -> None:
        """Record that threads arrived at the barrier of their cluster."""
        assert self._clusters is not None
        self._time += 1
        self._clusters.arrive(np.unique(self._blocks(state, group)), self._time)

    def cluster_complete(self, state: State, clusters: Array) -> None:
        """Record that the barriers of some clusters of a batch are complete."""
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
        """Record one access; report it if it races with another thread's."""
        self._within_block(state, lanes, good, size, step, write, strong, same)
        return self._launch.blocks > 1 and self._between_blocks(
            state, lanes, good, size, step, write, strong, same
        )

    def _within_block(
        self, state: State, lanes: ActiveLanes, good: Array | None, size: int, step: int,
        write: bool, strong: bool, same: Callable[[], Array] | None,
    ) -> None:  # fmt: skip
        races = state.thread_races
        if races is None:
            return
        offsets = lanes.offsets if good is None else np.where(good, lanes.offsets, 0)
        there = ActiveLanes(offsets.astype(np.int64) + races.shared_size, lanes.mask, lanes.shape)
        if not write or same is None:
            races.access(there, good, size, step, write=write, strong=strong)
            return
        kept = same()
        changed = ~kept if good is None else good & ~kept
        kept = kept if good is None else good & kept
        races.access(there, changed, size, step, write=True, strong=strong)
        if kept.any():
            races.access(there, kept, size, step, write=False, strong=strong, kept=True)

    def _between_blocks(
        self, state: State, lanes: ActiveLanes, good: Array | None, size: int, step: int,
        write: bool, strong: bool, same: Callable[[], Array] | None,
    ) -> bool:  # fmt: skip
        if strong:
            words = self._launch.program.steps[step].opcode.segments
            self.signal(state, lanes.mask, releases=not RELEASES.isdisjoint(words))
            self._met_strong = True
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
        others = self._conflicting(write, strong)
        mine = self._strong_written if strong else self._written
        for k in range(0, max(size, self._grain), self._grain):
            cells = (offsets + k) // self._grain
            for trace, verb in others:
                other = trace.who[cells]
                bad = (other > 0) & (other != me)
                if bad.any():
                    bad &= ~self._ordered(other, trace.when[cells], me)
                    if trace.strong and bad.any():
                        bad &= ~self._came_last(cells, trace.when[cells], me)
                    bad = differing(bad)
                    if not write and not trace.strong:
                        self._clear_own(bad, cells, me)
                    self._report(state, bad, numbers, trace, step, offsets, cells, write, verb)
            if write and strong:
                self._record_two(self._strong_written, self._strong_before, cells, me, step)
            elif write:
                self._store(cells, me, step, differing)
            else:
                self._record_read(cells, me, step, strong)
            collided |= write and bool((mine.who[cells] != me).any())
        return collided

    def _store(
        self, cells: Array, me: Array, step: int, differing: Callable[[Array], Array]
    ) -> None:
        """Record plain writes, and which blocks stored what a cell holds if several did."""
        trace, now = self._written, self._time
        other, when = trace.who[cells], trace.when[cells]
        trace.record(cells, me, now, step)
        met = (other > 0) & (other != me)
        several = met | (trace.who[cells] != me)
        if not several.any() and not self._stored:
            return
        pairs = zip(cells[met].tolist(), other[met].tolist(), strict=True)
        self._stored.update(zip(pairs, when[met].tolist(), strict=True))
        self._stored.update(dict.fromkeys(zip(cells.tolist(), me.tolist(), strict=True), now))
        changed = differing(np.ones(me.shape, bool))
        self._changed_at.update(dict.fromkeys(cells[changed].tolist(), now))

    def _clear_own(self, bad: Array, cells: Array, me: Array) -> None:
        """Clear the reads that get what their own block stored, before its last barrier.

        Other blocks stored the same value, so it does not matter whose store came last.
        """
        for n in np.flatnonzero(bad).tolist() if self._stored else ():
            cell, block = int(cells[n]), int(me[n])
            when = self._stored.get((cell, block), -1)
            bad[n] = not self._changed_at.get(cell, 0) <= when < self._synced[block]

    def _record_two(self, last: Trace, before: Trace, cells: Array, me: Array, step: int) -> None:
        """Record strong writes: each cell's last one, and the last one by another block."""
        moved = (last.who[cells] != me) & (last.who[cells] > 0)
        there = cells[moved]
        before.who[there] = last.who[there]
        before.when[there], before.step[there] = last.when[there], last.step[there]
        last.record(cells, me, self._time, step)
        beaten = last.who[cells] != me
        before.record(cells[beaten], me[beaten], self._time, step)

    def _came_last(self, cells: Array, when: Array, me: Array) -> Array:
        """Tell where a block's own atomic, whose result it uses, came after the other accesses.

        So the block that an atomic counter names as the last one may reset the counter.
        """
        own = self._strong_written
        found: Array = (own.who[cells] == me) & (own.when[cells] >= when)
        return found & self._returning[own.step[cells]]

    def _conflicting(self, write: bool, strong: bool) -> list[tuple[Trace, str]]:
        """List the traces of earlier accesses that can conflict with a new access.

        Each trace is paired with the kind of its accesses: ``written`` or ``read``.
        """
        found = [(self._written, "written")]
        alike = not strong and self._met_strong
        if alike:
            found += [(self._strong_written, "written"), (self._strong_before, "written")]
        if write:
            reads = [*self._reads, *(self._strong_reads if alike else ())]
            found += [(trace, "read") for trace in reads]
        return [pair for pair in found if pair[0].used]

    def _record_read(self, cells: Array, me: Array, step: int, strong: bool) -> None:
        first, second = self._strong_reads if strong else self._reads
        reader = first.who[cells]
        taken = (reader > 0) & (reader != me)
        if taken.any():
            taken &= ~self._ordered(reader, first.when[cells], me)
        first.record(cells[~taken], me[~taken], self._time, step)
        second.record(cells[taken], me[taken], self._time, step)
        beaten = first.who[cells] != me
        second.record(cells[beaten], me[beaten], self._time, step)

    def collide(self, state: State, lanes: ActiveLanes, lost: Array, step: int) -> None:
        """Report blocks that wrote different values to the same address in one instruction."""
        if not lost.any():
            return
        cells = lanes.offsets.astype(np.int64)[lost] // self._grain
        me = self._blocks(state, lanes.mask)[lost]
        numbers = np.arange(lost.size) if lanes.mask is None else np.flatnonzero(lanes.mask)
        strong = is_strong(self._launch.program.steps[step])
        trace = self._strong_written if strong else self._written
        self._report(
            state, trace.who[cells] != me, numbers[lost], trace, step,
            lanes.offsets.astype(np.int64)[lost], cells, True, "written",
        )  # fmt: skip

    def _ordered(self, before: Array, when: Array, me: Array) -> Array:
        released = self._released[before]
        found: Array = (released >= when) & (self._acquired[me] >= released)
        if self._clusters is not None:
            found = found | self._clusters.ordered(before, when, me)
        return found

    def _report(
        self, state: State, bad: Array, numbers: Array, trace: Trace, step: int,
        offsets: Array, cells: Array, write: bool, verb: str,
    ) -> None:  # fmt: skip
        if not bad.any():
            return
        first = int(np.flatnonzero(bad)[0])
        rule = "between-blocks-" + (
            "read-after-write" if not write
            else "write-after-write" if verb == "written" else "write-after-read"
        )  # fmt: skip
        other, there = int(trace.who[cells[first]]), int(trace.step[cells[first]])
        steps = self._launch.program.steps
        both = is_strong(steps[step]) and is_strong(steps[there])
        x, y, _ = self._launch.grid
        linear = (other - 1) % self._launch.blocks
        block = show_index((linear % x, linear // x % y, linear // (x * y)))
        where = self._launch.arena.describe(int(offsets[first]))
        state.report_lanes(
            "race", f"volatile-{rule}" if both else rule, numbers[bad], step,
            lambda _: f"{'writes' if write else 'reads'} {where} by "
            f"{state.who(int(numbers[first]))}, {verb} by block {block} at {THERE} "
            f"with nothing that orders the blocks{ORDERS_NOTHING if both else ''}",
            there,
        )  # fmt: skip


# The order that the barriers of a cluster impose on accesses to global memory.


class ClusterOrder:
    """The order that cluster barriers impose on different blocks' accesses to global memory.

    Times are those of `GlobalRaces`; blocks are numbered from 1.
    """

    def __init__(self, launch: KernelLaunch, members: int) -> None:
        numbers = np.arange(launch.all_blocks)
        blocks = numbers % launch.blocks
        case = numbers // launch.blocks * launch.blocks
        rank = ranks(blocks, launch.grid, launch.cluster)
        cluster = cluster_numbers(blocks, launch.grid, launch.cluster) + case
        self._rank: Array = np.concatenate([[0], rank])
        self._cluster: Array = np.concatenate([[-1], cluster])
        count = launch.all_blocks + 1
        self._arrived: Array = np.zeros(count, np.int32)
        self._published: Array = np.zeros(count, np.int32)
        self._known: Array = np.zeros((count, members), np.int32)

    def arrive(self, blocks: Array, time: int) -> None:
        """Record when blocks arrived at the barrier of their cluster."""
        self._arrived[blocks] = time

    def complete(self, blocks: Array) -> None:
        """Record that the barriers of some clusters are complete.

        `blocks` holds the numbers of all blocks of these clusters.
        """
        self._published[blocks] = self._arrived[blocks]

    def wait(self, blocks: Array, members: Array) -> None:
        """Give waiting blocks the arrival times of all blocks of their cluster.

        `members` has a row for each waiting block: the numbers of the blocks of its cluster, in the
        order of their ranks.
        """
        self._known[blocks] = np.maximum(self._known[blocks], self._published[members])

    def ordered(self, before: Array, when: Array, me: Array) -> Array:
        """Mark the past accesses that a cluster barrier orders before the present accesses.

        The past accesses were made by the blocks `before` at the times `when`; the present ones are
        made by the blocks `me`.
        """
        known = self._known[me, self._rank[before]]
        return np.asarray((self._cluster[before] == self._cluster[me]) & (when < known))


# Races between blocks, found without recording each load from a buffer that no block writes.


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
            quick = not (strong or self._stored or self._recorded & touched)
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
            writer = self._written.who[cells]
            if writer.any() and ((writer > 0) & (writer != me)).any():
                return False
            rows.append(cells)
        before = None if dense else [self._written.who[cells] for cells in rows]
        for k, cells in enumerate(rows):
            self._written.who[cells] = me
            if before is not None and (self._written.who[cells] != me).any():
                for old, undone in zip(before[: k + 1], rows, strict=False):
                    self._written.who[undone] = old
                return False
        self._time += 1
        self._pending.append(_Store(rows, self._time, step))
        self._pending_cells += 16 if dense else count * len(rows)
        if self._pending_cells > MOST_PENDING:
            self._record_pending()
        return True


# Stores of several threads to one address in one instruction: the final value is undefined.


class _Pair(Struct):
    """Arrays that describe pairs of lanes which wrote different values to the same address."""

    places: Array
    first: Array
    second: Array


def may_conflict(offsets: Array) -> bool:
    """Tell whether two active lanes may have stored to the same address."""
    return offsets.size > 1 and not bool((offsets[1:] > offsets[:-1]).all())


def report_conflicts(
    state: State,
    lanes: ActiveLanes,
    values: Sequence[Array],
    lost: Array,
    step: int,
    *,
    strong: bool,
    within_blocks: bool,
    describe: Callable[[int], str],
) -> None:
    """Report threads that stored different values to the same address in one instruction.

    Stores by lanes of one warp are reported as a separate kind of race, ``same-instruction``.
    Stores by different warps are not ordered either, and are reported as ``write-after-write``.
    """
    if not lost.any():
        return
    numbers = np.arange(lost.size) if lanes.mask is None else np.flatnonzero(lanes.mask)
    chosen = np.isin(lanes.offsets, lanes.offsets[lost])
    places = lanes.offsets[chosen].astype(np.int64)
    within, across = _pairs(places, numbers[chosen], [value[chosen] for value in values])
    _report(state, within, step, "same-instruction", describe)
    if strong:
        return
    if within_blocks:
        alike = across.first // state.width == across.second // state.width
        across = _Pair(across.places[alike], across.first[alike], across.second[alike])
    _report(state, across, step, "write-after-write", describe)


def _pairs(places: Array, lanes: Array, values: Sequence[Array]) -> tuple[_Pair, _Pair]:
    """Return the pairs of lanes that wrote different values to one address.

    The first result has pairs within a warp, the second has pairs across warps. An address with a
    conflict within a warp is not examined for conflicts across warps.
    """
    order = np.argsort(places, kind="stable")
    places, lanes = places[order], lanes[order]
    joined = places[1:] == places[:-1]
    differs = np.zeros(joined.size, bool)
    for value in values:
        row = value[order]
        differs |= row[1:] != row[:-1]
    together = lanes[1:] // WARP == lanes[:-1] // WARP
    group = np.cumsum(~joined)
    within = joined & differs & together
    across = joined & differs & ~together & ~np.isin(group, group[within])
    one, two = (_Pair(places[1:][k], lanes[:-1][k], lanes[1:][k]) for k in (within, across))
    return one, two


def _report(
    state: State, pair: _Pair, step: int, rule: str, describe: Callable[[int], str]
) -> None:
    if not pair.second.size:
        return
    at, first, second = int(pair.places[0]), int(pair.first[0]), int(pair.second[0])
    other = show_index(state.thread_index(first % state.width))
    whose = "of its warp" if rule == "same-instruction" else "of another warp"
    if first // state.width != second // state.width:
        whose = f"(block {show_index(state.block_index(first // state.width))})"
    state.report_lanes(
        "race", rule, pair.second, step,
        lambda _: f"writes {describe(at)} by {state.who(second)} and, in the same instruction, "
        f"another value by thread {other} {whose}: which of them stays is undefined",
    )  # fmt: skip
