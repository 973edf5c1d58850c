"""The order that the barriers of a cluster impose on accesses to global memory."""

from __future__ import annotations

import numpy as np

from gpuemu_flow.emulator.clusters import cluster_numbers, ranks
from gpuemu_flow.emulator.state import KernelLaunch
from gpuemu_flow.emulator.types import Array


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
