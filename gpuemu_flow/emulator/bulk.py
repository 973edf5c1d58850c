"""Copies of many bytes that one thread starts: cp.async.bulk, between global and shared memory.

The bytes arrive when a thread waits for the barrier object, or for the group, and no earlier, so
that a missing wait shows as a read of what was there before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuemu_flow.emulator.asynchronous import MANY
from gpuemu_flow.emulator.atomics import AtomicForm
from gpuemu_flow.emulator.lanes import Lanes
from gpuemu_flow.emulator.mbarriers import Mbarriers
from gpuemu_flow.emulator.memory import GLOBAL_BASE, UNALLOCATED, UNINITIALISED, WRITTEN
from gpuemu_flow.emulator.types import Array

_COME = AtomicForm("mbarrier.arrive", "b64")
_ALIGNMENT = 16


@dataclass(frozen=True)
class _Bulk:
    """One thread's copy.

    Attributes
    ----------
    lane : int
        Flat number of the thread.
    shared, other : int
        Offset into the batch's shared memory, offset into the arena.
    size : int
    into_shared : bool
    barrier : int
        Offset of the barrier object in the block's shared memory; -1 for a group.
    group, step : int
    """

    lane: int
    shared: int
    other: int
    size: int
    into_shared: bool
    barrier: int
    group: int
    step: int


class Bulk(Mbarriers):
    """``cp.async.bulk`` of one batch."""

    def begin(self, block_ids: Array) -> None:
        """Set up a batch without copies under way."""
        super().begin(block_ids)
        self._bulk: list[_Bulk] = []
        self._bulk_group: Array = np.zeros(self.full.shape, np.int64)

    def start_bulk(
        self, shared: Array, other: Array, size: Array, barrier: Array | None,
        into_shared: bool, mask: Array | None, step: int,
    ) -> None:  # fmt: skip
        """Start copies; addresses of shared memory are offsets into that of the block."""
        active = self.spread(self.live if mask is None else mask)
        base = self.spread(self.shared_base).reshape(-1)
        rows = [self.spread(x).reshape(-1) for x in (shared, other, size)]
        objects = None if barrier is None else self.spread(barrier).reshape(-1)
        groups = self._bulk_group.reshape(-1)
        for lane in np.flatnonzero(active).tolist():
            near, far, count = (int(row[lane]) for row in rows)
            copy = _Bulk(
                lane, near + int(base[lane]), (far - GLOBAL_BASE) & 0xFFFFFFFFFFFFFFFF, count,
                into_shared, -1 if objects is None else int(objects[lane]),
                int(groups[lane]), step,
            )  # fmt: skip
            if self._may_copy(copy, near):
                self._bulk.append(copy)
                self._note_read(copy)

    def _note_read(self, copy: _Bulk) -> None:
        """Let a copy out of shared memory race with writes that no barrier orders before it."""
        if self.shared_races is not None and not copy.into_shared:
            only = np.zeros(self.full.shape, bool)
            only.reshape(-1)[copy.lane] = True
            lanes = Lanes(np.array([copy.shared], np.uint64), only, ())
            self.shared_races.access(lanes, None, copy.size, copy.step, write=False, strong=False)

    def _may_copy(self, copy: _Bulk, near: int) -> bool:
        lanes = np.array([copy.lane])

        def find(check: str, rule: str, message: str) -> None:
            said = f"{message}, by {self.who(copy.lane)}"
            self.report_lanes(check, rule, lanes, copy.step, lambda _: said)

        if (near | copy.other | copy.size) % _ALIGNMENT:
            find("mem", "misaligned", f"copies {copy.size:,} bytes: addresses and size must be "
                   f"multiples of {_ALIGNMENT}")  # fmt: skip
            return False
        valid = self.shared_valid
        if near + copy.size > self.shared_limit or (
            valid is not None and not valid[near : near + copy.size].all()
        ):
            verb = "writes" if copy.into_shared else "reads"
            find("mem", "out-of-bounds", f"{verb} {copy.size:,} bytes of shared memory at "
                   f"{self.describe_shared(near)}")  # fmt: skip
            return False
        arena = self.launch.arena
        end = copy.other + copy.size
        shadow = arena.shadow[copy.other : end] if end <= len(arena.shadow) else None
        verb = "reads" if copy.into_shared else "writes"
        if shadow is None or (shadow == UNALLOCATED).any():
            where = self._describe_global(copy.other, "out-of-bounds")
            find("mem", "out-of-bounds", f"{verb} {copy.size:,} bytes at {where}")
            return False
        if not copy.into_shared and not (shadow != 3).all():
            find("mem", "read-only", f"writes {arena.describe(copy.other)}, which is constant")
            return False
        if copy.into_shared and self.check_init and (shadow == UNINITIALISED).any():
            at = copy.other + int(np.flatnonzero(shadow == UNINITIALISED)[0])
            find("init", "never-written", f"reads {arena.describe(at)}, which nobody wrote")
        return True

    def _deliver_bulk(self, copy: _Bulk) -> None:
        data = self.launch.arena.data
        near, far = slice(copy.shared, copy.shared + copy.size), slice(
            copy.other, copy.other + copy.size
        )  # fmt: skip
        if copy.into_shared:
            self.shared[near] = data[far]
            if self.check_init:
                self.shared_written[near] = 1
            return
        if self.check_init:
            missing = np.flatnonzero(self.shared_written[near] == 0)
            if missing.size:
                where = self._name_private(copy.shared + int(missing[0]), "shared", 1)
                said = f"reads {where}, which nobody wrote, by {self.who(copy.lane)}"
                self.report_lanes(
                    "init", "never-written", np.array([copy.lane]), copy.step, lambda _: said
                )
            self.launch.arena.shadow[far] = WRITTEN
        data[far] = self.shared[near]

    def deliver_for(self, waited: Array) -> None:
        """Deliver what comes with an arrival at some barrier objects."""
        super().deliver_for(waited)
        if not self._bulk:
            return
        wanted = set(waited.tolist())
        left = []
        for copy in self._bulk:
            row = copy.lane // self.width
            if copy.barrier < 0 or copy.barrier + row * self.shared_stride not in wanted:
                left.append(copy)
                continue
            self._deliver_bulk(copy)
            only = np.zeros(self.full.shape, bool)
            only.reshape(-1)[copy.lane] = True
            address = np.full((1, 1), copy.barrier, np.uint64)
            none, come = np.zeros((1, 1), np.uint64), np.full((1, 1), -copy.size, np.int64)
            self.arrive_mbarrier("shared", _COME, address, none, come, only, copy.step)
        self._bulk = left

    def commit_bulk(self, mask: Array | None) -> None:
        """Close the group of copies that a thread has started."""
        self._bulk_group = self._bulk_group + self.spread(self.full if mask is None else mask)

    def wait_bulk(self, most: int, mask: Array | None) -> None:
        """Deliver all but the latest groups."""
        active = self.spread(self.live if mask is None else mask).reshape(-1)
        groups, most = self._bulk_group.reshape(-1), min(most, MANY)
        left = []
        for copy in self._bulk:
            due = copy.barrier < 0 and active[copy.lane] and copy.group < groups[copy.lane] - most
            if due:
                self._deliver_bulk(copy)
            else:
                left.append(copy)
        self._bulk = left
