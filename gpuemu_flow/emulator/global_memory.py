"""Loads and stores of global memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuemu_flow.emulator.bytes import Bytes
from gpuemu_flow.emulator.memory import (
    GLOBAL_BASE,
    READ_ONLY,
    UNALLOCATED,
    UNINITIALISED,
    WRITTEN,
)
from gpuemu_flow.emulator.registry import ActiveLanes
from gpuemu_flow.emulator.store_conflicts import may_conflict, report_conflicts
from gpuemu_flow.emulator.types import Array

_G = np.uint64(GLOBAL_BASE)


class GlobalMemory(Bytes):
    """Loads, stores and fences of one batch of blocks in global memory."""

    def fence(self, mask: Array | None, *, within_block: bool) -> None:
        """Execute a fence, which orders the accesses of the threads that execute it.

        If `within_block` is True, only threads of the same block are sure to see this order.
        """
        chosen = None if mask is None else self.spread(mask)
        if self.global_races is not None and not within_block:
            self.global_races.fence(self, chosen)
        if self.thread_races is not None:
            self.thread_races.fence(chosen)

    def _check_global(self, lanes: ActiveLanes, size: int, step: int, write: bool) -> Array | None:
        """Check an access to global memory; return the mask of permitted lanes, None for all."""
        arena, offsets = self.launch.arena, lanes.offsets
        self._check_alignment(lanes, size, step, "global")
        low, high = int(offsets.min()), int(offsets.max())
        if high <= len(arena.data):
            buffer = arena.find(low, high + size)
            if buffer is not None and (buffer.writable if write else
                                       buffer.initialised or not self.check_init):  # fmt: skip
                return None
        limit = np.uint64(len(arena.data) - 64)
        places = np.minimum(offsets, limit).astype(np.int64)
        first, last = arena.shadow[places], arena.shadow[places + size - 1]
        good = (offsets < limit) & (first != UNALLOCATED) & (last != UNALLOCATED)
        if write:
            locked = good & (first == READ_ONLY)
            if locked.any():
                self._report_global(lanes, locked, size, step, "read-only", "writes")
                good &= ~locked
        elif self.check_init:
            unwritten = good & ((first == UNINITIALISED) | (last == UNINITIALISED))
            if unwritten.any():
                numbers = self._numbers(lanes, unwritten)
                at = int(offsets[np.flatnonzero(unwritten)[0]])
                self.report_lanes(
                    "init", "never-written", numbers, step,
                    lambda _: f"reads {arena.describe(at)}, which nobody wrote, "
                    f"by {self.who(int(numbers[0]))}",
                )  # fmt: skip
        if good.all():
            return None
        outside = ~good if not write else (offsets >= limit) | (first == 0) | (last == 0)
        self._report_global(
            lanes, outside, size, step, "out-of-bounds", "writes" if write else "reads"
        )
        return good

    def _report_global(
        self, lanes: ActiveLanes, bad: Array, size: int, step: int, rule: str, verb: str
    ) -> None:
        positions = np.flatnonzero(bad)
        if not positions.size:
            return
        numbers = self._numbers(lanes, bad)
        offset = int(lanes.offsets[positions[0]])
        self.report_lanes(
            "mem", rule, numbers, step,
            lambda _: f"{verb} {size} bytes at {self._describe_global(offset, rule)}, "
            f"by {self.who(int(numbers[0]))}",
        )  # fmt: skip

    def _describe_global(self, offset: int, rule: str) -> str:
        arena = self.launch.arena
        if rule == "read-only":
            return f"{arena.describe(offset)}, which is constant"
        if offset >= len(arena.data):
            address = (offset + GLOBAL_BASE) & 0xFFFFFFFFFFFFFFFF
            return f"address 0x{address:x}, which is no global memory of this launch"
        return arena.describe(offset)

    def load_global(
        self, address: Array, width: int, vector: int, mask: Array | None, step: int, strong: bool
    ) -> list[Array]:
        """Load from global (or constant) memory."""
        races = self.global_races
        lanes = self._lanes(address - _G, mask, whole=races is not None)
        if not lanes.offsets.size:
            return [np.zeros((1, 1), f"u{width}")] * vector
        good = self._check_global(lanes, width * vector, step, write=False)
        if races is not None:
            races.access(self, lanes, good, width * vector, step, write=False, strong=strong)
        return self._take(self.launch.arena.data, lanes, width, vector, good)

    def store_global(
        self, address: Array, values: Sequence[Array], width: int, mask: Array | None, step: int,
        strong: bool,
    ) -> None:  # fmt: skip
        """Store to global memory."""
        lanes = self._lanes(address - _G, mask, whole=True)
        if not lanes.offsets.size:
            return
        size = width * len(values)
        arena = self.launch.arena
        arena.touch(lanes.offsets, size)
        good = self._check_global(lanes, size, step, write=True)
        races = self.global_races

        def unchanged() -> Array:
            return self._unchanged(arena.data, lanes, values, width, good)

        collided = races is not None and races.access(
            self, lanes, good, size, step, write=True, strong=strong, same=unchanged
        )
        self._put(arena.data, lanes, values, width, good)
        if self.check_race and (collided or may_conflict(lanes.offsets)):
            lost = self._lost(arena.data, lanes, values, width, good)
            if races is not None and collided:
                races.collide(self, lanes, lost, step)
            report_conflicts(
                self, lanes, [self.active(v, lanes.mask) for v in values], lost, step,
                strong=strong, within_blocks=True, describe=arena.describe,
            )  # fmt: skip
        if self.check_init:
            self._mark(arena.shadow, lanes, size, good, WRITTEN)
