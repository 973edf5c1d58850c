"""Races on the shared memory of a cluster's blocks.

Each warp of each block of a cluster has a vector clock. A block's barrier joins the clocks of its
own warps, and the cluster's barrier joins the clocks of all warps. The memory of a block is gone
when its last thread has ended, so accesses by other blocks must be ordered before that.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuemu_flow.emulator.findings import show_index
from gpuemu_flow.emulator.polling import ORDERS_NOTHING
from gpuemu_flow.emulator.races import LoggedRaces
from gpuemu_flow.emulator.state import State
from gpuemu_flow.emulator.types import WARP, Array
from gpuemu_flow.model.types import THERE


class ClusterRaces(LoggedRaces):
    """The happens-before order of one batch of clusters; each access is checked immediately."""

    def __init__(self, state: State, size: int, describe: Callable[[int, int], str]) -> None:
        super().__init__(state, size, describe)
        self._exact = True
        self._members = state.cluster_size
        self._own_warps = self._warps
        self._clusters = state.count // self._members
        self._warps *= self._members
        self._bytes = size // max(1, state.count)
        lanes = np.arange(state.count * state.width)
        self._row = lanes // (state.width * self._members)
        self._warp = lanes // WARP % self._warps
        self._clock = np.zeros((self._clusters, self._warps, self._warps), np.int32)
        shape = (self._clusters, self._warps)
        self._collected: Array = np.zeros(shape, np.int32)
        self._published: Array = np.zeros(shape, np.int32)

    def _warps_of(self, chosen: Array) -> Array:
        lanes = chosen.reshape(self._clusters, self._warps, WARP)
        return np.asarray(lanes.any(axis=2))

    def _by_block(self, x: Array) -> Array:
        """Reshape (clusters, warps of a cluster, ...) to (blocks, warps of a block, ...)."""
        return x.reshape(self._clusters * self._members, self._own_warps, *x.shape[2:])

    def _count(self, chosen: Array | None) -> Array:
        """Advance the clocks of the chosen warps, or of all warps if `chosen` is None."""
        index = np.arange(self._warps)
        warps = np.ones((self._clusters, self._warps), bool)
        if chosen is not None:
            warps = self._warps_of(chosen)
        self._clock[:, index, index] += warps
        return warps

    def arrive(self, chosen: Array) -> Array:
        """Record a ``bar.arrive``; return the clocks of each block's arriving warps."""
        warps = self._count(chosen)
        known = np.where(warps[:, :, None], self._clock, 0)
        return np.asarray(self._by_block(known).max(axis=1))

    def barrier(self, chosen: Array | None, arrived: Array | None = None) -> None:
        """Join the clocks of the warps that a barrier releases, for each block separately."""
        warps = self._by_block(self._count(chosen))
        clock = self._by_block(self._clock)
        joined = np.where(warps[:, :, None], clock, 0).max(axis=1, keepdims=True)
        if arrived is not None:
            joined = np.maximum(joined, arrived[:, None, :])
        clock[...] = np.where(warps[:, :, None], joined, clock)

    def end_interval(self) -> None:
        """Do nothing: each access was examined when it was made."""

    def cluster_arrive(self, chosen: Array, releases: bool) -> None:
        """Record that threads arrived at the barrier of their cluster. `releases` is False for a
        relaxed arrival, which does not publish the threads' clocks."""
        warps = self._count(chosen)
        if releases:
            known = np.where(warps[:, :, None], self._clock, 0).max(axis=1)
            self._collected = np.maximum(self._collected, known)

    def cluster_complete(self, clusters: Array) -> None:
        """Record that the barrier of some clusters is complete."""
        self._published[clusters] = self._collected[clusters]
        self._collected[clusters] = 0

    def cluster_pass(self, chosen: Array) -> None:
        """Let threads pass the barrier of their cluster after waiting at it. The clocks that
        arriving threads published at the barrier are merged into the clocks of the warps of
        `chosen`, a mask of the waiting threads."""
        warps = self._warps_of(chosen)[:, :, None]
        known = np.maximum(self._clock, self._published[:, None, :])
        self._clock = np.where(warps, known, self._clock)

    def block_ended(self, row: int) -> None:
        """Report accesses by other blocks to the memory of a block that has ended. Accesses that
        are ordered before the block's end are not reported."""
        cluster, place = divmod(row, self._members)
        own = slice(place * self._own_warps, (place + 1) * self._own_warps)
        known = self._clock[cluster, own].max(axis=0)
        first = row * self._bytes // self._grain
        cells = slice(first, (row + 1) * self._bytes // self._grain)
        for trace, did in self.all_traces():
            verb = "writes" if did == "written" else "reads"
            who, when = trace.lane(cells), trace.when[cells]
            late = (who >= 0) & (who // self._s.width != row)
            late[late] &= when[late] >= known[self._warp[who[late]]]
            steps = trace.step[cells]
            for step in np.unique(steps[late]).tolist():
                self._report_late(row, first, late & (steps == step), who, step, verb)

    def _report_late(
        self, row: int, first: int, late: Array, who: Array, step: int, verb: str
    ) -> None:
        at = int(np.flatnonzero(late)[0])
        where = self.describe((first + at) * self._grain, step)
        verb = "writes" if self._did(step, "") else verb
        ended = show_index(self._s.block_index(row))
        numbers = np.unique(who[late])
        self._s.report_lanes(
            "race", "block-may-have-ended", numbers, step,
            lambda _: f"{verb} {where} of block {ended} by {self._s.who(int(numbers[0]))}, with no "
            "barrier of the cluster between it and the end of that block",
        )  # fmt: skip

    def report(
        self, bad: Array, me: Array, who: Array, steps: Array, step: int, verb: str, write: bool,
        offsets: Array,
    ) -> None:  # fmt: skip
        """Report accesses that are not ordered with an earlier access by another thread."""
        first = int(np.flatnonzero(bad)[0])
        mine, other, at = int(me[first]), int(who[first]), int(offsets[first])
        width, row = self._s.width, at // max(1, self._bytes)
        if at >= self.shared_size or mine // width == other // width == row:
            super().report(bad, me, who, steps, step, verb, write, offsets)
            return
        numbers = me[bad]
        both = self._are_strong(step, int(steps[first]))
        verb = self._did(int(steps[first]), verb)
        rule = {
            ("written", False): "between-cluster-blocks-read-after-write",
            ("written", True): "between-cluster-blocks-write-after-write",
            ("read", True): "between-cluster-blocks-write-after-read",
        }[verb, write]
        where = self.describe(at, step)
        there = show_index(self._s.block_index(row))
        self._s.report_lanes(
            "race", f"volatile-{rule}" if both else rule, numbers, step,
            lambda _: f"{'writes' if write else 'reads'} {where} of block {there} by "
            f"{self._s.who(int(numbers[0]))}, {verb} by {self._s.who(other)} at {THERE} "
            f"with no barrier of the cluster in between{ORDERS_NOTHING if both else ''}",
            int(steps[first]),
        )  # fmt: skip
