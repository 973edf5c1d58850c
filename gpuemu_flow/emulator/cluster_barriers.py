"""``barrier.cluster`` of one batch: threads wait until all threads of the cluster have arrived."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.types import Array


class WaitResult(Struct, frozen=True):
    """Masks of the threads that need not wait, and of those that wait without having arrived."""

    passed: Array
    absent: Array


class ClusterBarriers:
    """Phases of the barriers of all clusters of one batch.

    Attributes
    ----------
    waiting : bool array
        Threads that wait, by block and lane.
    block, step : int arrays
        For each waiting thread, the basic block in which it goes on, and the step where it waits.
    """

    def __init__(self, shape: tuple[int, ...], size: int) -> None:
        self._size = size
        self._arrived = np.zeros(shape, bool)
        self._through = np.zeros(shape, bool)
        self.waiting = np.zeros(shape, bool)
        self.block = np.zeros(shape, np.int32)
        self.step = np.zeros(shape, np.int32)

    def arrive(self, group: Array) -> Array:
        """Record arrivals; return the threads that had arrived before and have not waited since."""
        twice: Array = group & (self._arrived | self._through)
        self._arrived |= group
        self._through &= ~group
        return twice

    def wait(self, group: Array, block: int, step: int) -> WaitResult:
        """Make threads that have arrived wait until the phase of their barrier ends.

        The result has masks of two kinds of threads that are not made to wait: those whose phase
        has already ended, and those that have not arrived at the barrier.

        Parameters
        ----------
        group : bool array
            The threads, by block and lane.
        block, step : int
            The basic block in which the threads will go on, and the step where they wait.
        """
        absent = group & ~(self._arrived | self._through)
        stays = group & self._arrived
        passed = group & self._through
        self._through &= ~passed
        self.waiting |= stays
        self.block[stays] = block
        self.step[stays] = step
        return WaitResult(passed, absent)

    def complete(self, live: Array) -> tuple[Array, Array]:
        """End the phases at which all running threads have arrived.

        Returns
        -------
        tuple of array
            Clusters whose phase has ended, and the threads that no longer have to wait.
        """
        missing = (live & ~self._arrived).reshape(-1, self._size * live.shape[1]).any(axis=1)
        begun = self._arrived.reshape(missing.size, -1).any(axis=1)
        ended = begun & ~missing
        over = np.repeat(ended, self._size)[:, None] & self._arrived
        self._arrived &= ~over
        released = over & self.waiting
        self.waiting &= ~released
        self._through |= over & ~released
        return np.flatnonzero(ended), released
