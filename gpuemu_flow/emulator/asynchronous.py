"""Copies that a thread starts and waits for later: cp.async."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.types import Array
from gpuemu_flow.emulator.warps import Warps

MANY = 1 << 30
"""Number that is larger than any number of groups."""


class _Copy(Struct):
    """Copies of one instruction; `mask` marks the threads whose copies are not yet delivered."""

    mask: Array
    target: Array
    source: Array
    size: int
    taken: Array | None
    group: Array
    step: int


class Asynchronous(Warps):
    """Executes the ``cp.async`` instructions of one batch of blocks.

    The bytes arrive only when their thread waits for them, so that a missing wait shows as a read
    of the old content.
    """

    def begin(self, block_ids: Array) -> None:
        """Start a batch with no copies under way."""
        super().begin(block_ids)
        self._group = np.zeros(self.full.shape, np.int32)
        self._copies: list[_Copy] = []

    def start_copy(
        self,
        target: Array,
        source: Array,
        size: int,
        taken: Array | None,
        mask: Array | None,
        step: int,
    ) -> None:
        """Start ``cp.async``: a copy of `size` bytes per thread from global to shared memory."""
        active = self.spread(self.live if mask is None else mask)
        self._copies.append(
            _Copy(
                active,
                self.spread(target),
                self.spread(source),
                size,
                None if taken is None else self.spread(taken),
                self._group.copy(),
                step,
            )
        )

    def commit_copies(self, mask: Array | None) -> None:
        """Close each thread's current group of copies; later copies belong to a new group."""
        self._group += self.spread(self.full if mask is None else mask)

    def wait_copies(self, pending: int, mask: Array | None, *, everything: bool) -> None:
        """Deliver each thread's copies, except those of the latest `pending` groups."""
        pending = min(pending, MANY)
        left = []
        for copy in self._copies:
            due = copy.mask.copy() if everything else copy.mask & (
                copy.group < self._group - pending
            )  # fmt: skip
            if mask is not None:
                due &= self.spread(mask)
            if due.any():
                self._deliver(copy, due)
                copy.mask = copy.mask & ~due
            if copy.mask.any():
                left.append(copy)
        self._copies = left

    def _deliver(self, copy: _Copy, due: Array) -> None:
        if copy.taken is None:
            values = self.load_global(copy.source, 4, copy.size // 4, due, copy.step, False)
            self.store_shared(copy.target, values, 4, due, copy.step, False)
            return
        for start in range(0, copy.size, 4):
            wanted = due & (copy.taken > np.uint32(start))
            value = np.zeros((1, 1), np.uint32)
            if wanted.any():
                there = self.load_global(
                    copy.source + np.uint64(start), 4, 1, wanted, copy.step, False
                )
                value = np.where(wanted, there[0], np.uint32(0))
            self.store_shared(copy.target + np.uint64(start), (value,), 4, due, copy.step, False)
