"""Warp operations of one batch: shuffles, votes, matches, reductions, and matrix fragments."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.atomics import Atomics
from gpuemu_flow.emulator.types import WARP, Array

_BITS = np.uint32(1) << np.arange(WARP, dtype=np.uint32)


class Warps(Atomics):
    """Operations that the threads of a warp carry out together."""

    def by_warp(self, x: Array) -> Array:
        """Return values of lanes as an array of shape (blocks, warps, 32)."""
        return self.spread(x).reshape(self.count, -1, WARP)

    def _by_lane(self, x: Array) -> Array:
        """Give lanes their values, of shape (blocks, warps, 32), or 1 for one of all lanes."""
        return np.broadcast_to(x, (*x.shape[:2], WARP)).reshape(self.full.shape)

    def shuffle(
        self,
        mode: str,
        value: Array,
        b: Array,
        c: Array,
        members: Array,
        mask: Array | None,
        step: int,
    ) -> tuple[Array, Array]:
        """Compute ``shfl.sync``; `b` and `c` are the operands of these names in the PTX ISA."""
        self.check_members(members, mask, step)
        lane = np.arange(WARP, dtype=np.int32)
        amount = self.by_warp(b).astype(np.int32) & 31
        control = self.by_warp(c).astype(np.int32)
        clamp, segment = control & 31, (control >> 8) & 31
        highest = (lane & segment) | (clamp & ~segment)
        lowest = lane & segment
        source: Array = lowest | (amount & ~segment)
        if mode == "up":
            source = lane - amount
        elif mode == "down":
            source = lane + amount
        elif mode == "bfly":
            source = lane ^ amount
        inside = source >= highest if mode == "up" else source <= highest
        source = np.where(inside, source, lane)
        taken = np.take_along_axis(self.by_warp(value), source.astype(np.int64), axis=2)
        if mask is not None and "sync" in self.launch.checks:
            self._check_sources(source, mask, step)
        return taken.reshape(self.full.shape), inside.reshape(self.full.shape)

    def _check_sources(self, source: Array, mask: Array, step: int) -> None:
        active = self.by_warp(mask)
        present = np.take_along_axis(active, source.astype(np.int64), axis=2)
        bad = (active & ~present).reshape(self.full.shape)
        if bad.any():
            self.report_mask(
                "sync", "absent-source", bad, step,
                "takes a value from a lane that does not take part",
            )  # fmt: skip

    def vote(
        self, mode: str, predicate: Array, members: Array, mask: Array | None, step: int
    ) -> Array:
        """Compute ``vote.sync``."""
        self.check_members(members, mask, step)
        voters = self._voters(members, mask)
        given = self.by_warp(predicate)[..., None, :]
        if mode == "ballot":
            bits = np.where(given & voters, _BITS, np.uint32(0))
            return self._by_lane(np.bitwise_or.reduce(bits, axis=3))
        some = np.asarray((given & voters).any(axis=3))
        if mode == "any":
            return self._by_lane(some)
        every = np.asarray((given | ~voters).all(axis=3))
        return self._by_lane(every if mode == "all" else every | ~some)

    def _voters(self, members: Array, mask: Array | None) -> Array:
        """Return for each lane of a warp those with which it votes: they have its member mask. A
        last axis is that of the others; the one before it has length 1 if all lanes agree."""
        lanes = np.arange(WARP, dtype=np.uint32)
        given = self.by_warp(members)
        named = (given >> lanes) & np.uint32(1) != 0
        voters = named if mask is None else named & self.by_warp(mask)
        least = np.where(voters, given, np.uint32(0xFFFFFFFF)).min(axis=2, keepdims=True)
        if not (voters & (given != least)).any():
            return voters[..., None, :]
        return voters[..., None, :] & (given[..., :, None] == given[..., None, :])

    def active_mask(self, mask: Array | None) -> Array:
        """Compute ``activemask``."""
        active = self.by_warp(self.full if mask is None else mask)
        bits = np.where(active, _BITS, np.uint32(0))
        return self._by_lane(np.bitwise_or.reduce(bits, axis=2, keepdims=True))

    def elect(self, members: Array, mask: Array | None, step: int) -> tuple[Array, Array]:
        """Execute ``elect.sync``; return the mask's lowest lane, and True only for that lane."""
        self.check_members(members, mask, step)
        given = self.spread(members)
        lowest = given & (~given + np.uint32(1))
        leader = np.zeros(given.shape, np.uint32)
        for bit in range(WARP):
            leader = np.where(lowest == np.uint32(1 << bit), np.uint32(bit), leader)
        return leader, leader == self.spread(self.special["laneid"])

    def match(
        self, mode: str, value: Array, members: Array, mask: Array | None, step: int
    ) -> tuple[Array, Array]:
        """Execute ``match.sync``."""
        self.check_members(members, mask, step)
        voters = self._voters(members, mask)
        given = self.by_warp(value)
        equal = (given[..., :, None] == given[..., None, :]) & voters
        if mode == "any":
            bits = np.where(equal, _BITS, np.uint32(0))
            found = np.bitwise_or.reduce(bits, axis=3)
            return found.reshape(self.full.shape), self.full
        alike = (equal | ~voters).all(axis=3)
        voting = np.bitwise_or.reduce(np.where(voters, _BITS, np.uint32(0)), axis=3)
        found = np.where(alike, voting, np.uint32(0))
        return found.reshape(self.full.shape), alike.reshape(self.full.shape)

    def reduce(
        self, operation: str, value: Array, members: Array, mask: Array | None, step: int
    ) -> Array:
        """Compute ``redux.sync``."""
        self.check_members(members, mask, step)
        voters = self._voters(members, mask)
        given = self.by_warp(value)[..., None, :]
        kind = value.dtype
        limits = np.iinfo(kind)
        neutral, function = {
            "add": (0, np.add),
            "or": (0, np.bitwise_or),
            "xor": (0, np.bitwise_xor),
            "and": (-1, np.bitwise_and),
            "min": (limits.max, np.minimum),
            "max": (limits.min, np.maximum),
        }[operation]
        blank = np.array(neutral, np.int64).astype(kind)
        chosen = np.where(voters, given, blank)
        return self._by_lane(function.reduce(chosen, axis=3).astype(kind))


# Copies that a thread starts and waits for later: cp.async.


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
    """Executes the ``cp.async`` instructions of one batch of blocks. The bytes arrive only when
    their thread waits for them, so that a missing wait shows as a read of the old content."""

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
