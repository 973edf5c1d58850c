"""Loads and stores of local memory, and loads and stores through generic addresses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuemu_flow.emulator.findings import show_index
from gpuemu_flow.emulator.memory import (
    LOCAL_BASE,
    SHARED_BASE,
    WINDOW,
)
from gpuemu_flow.emulator.registry import ActiveLanes
from gpuemu_flow.emulator.shared_memory import SharedMemory
from gpuemu_flow.emulator.types import Array


class Accesses(SharedMemory):
    """Memory accesses of one batch of blocks, in all state spaces."""

    def _local_lanes(
        self, address: Array, mask: Array | None, size: int, step: int, verb: str
    ) -> tuple[ActiveLanes, Array | None]:
        near = self._lanes(self.spread(address), mask, whole=True)
        good: Array | None = None
        limit = self.launch.program.local_bytes
        if near.offsets.size:
            self._check_alignment(near, size, step, "local")
            if int(near.offsets.max()) + size > limit:
                good = (near.offsets <= np.uint64(max(0, limit - size))) & (limit >= size)
                numbers = self._numbers(near, ~good)
                offset = int(near.offsets[np.flatnonzero(~good)[0]])
                self.report_lanes(
                    "mem", "out-of-bounds", numbers, step,
                    lambda _: f"{verb} {size} bytes of local memory at {offset:,} of {limit:,}, "
                    f"by {self.who(int(numbers[0]))}",
                )  # fmt: skip
                address = np.where(self._back(good, near), address, np.uint64(0))
        return self._lanes(address + self.local_base, mask, whole=True), good

    def load_local(
        self, address: Array, width: int, vector: int, mask: Array | None, step: int, strong: bool
    ) -> list[Array]:
        """Load from the local memory of each thread."""
        lanes, good = self._local_lanes(address, mask, width * vector, step, "reads")
        if not lanes.offsets.size:
            return [np.zeros((1, 1), f"u{width}")] * vector
        if self.check_init:
            self._check_written(self.local_written, lanes, good, width, vector, step, "local")
        return self._take(self.local, lanes, width, vector, good)

    def store_local(
        self, address: Array, values: Sequence[Array], width: int, mask: Array | None, step: int,
        strong: bool,
    ) -> None:  # fmt: skip
        """Store to the local memory of each thread."""
        size = width * len(values)
        lanes, good = self._local_lanes(address, mask, size, step, "writes")
        if not lanes.offsets.size:
            return
        self._put(self.local, lanes, values, width, good)
        if self.check_init:
            self._mark(self.local_written, lanes, size, good, 1)

    def windows(self, address: Array, mask: Array | None) -> list[tuple[str, int, Array | None]]:
        """List the state spaces in which the generic addresses of lanes lie."""
        found: list[tuple[str, int, Array | None]] = []
        rest = mask
        for space, base in (("shared", SHARED_BASE), ("local", LOCAL_BASE)):
            inside = (address >= np.uint64(base)) & (address < np.uint64(base + WINDOW))
            if not inside.any():
                continue
            if inside.all():
                return [(space, base, mask)]
            chosen = self.spread(inside if mask is None else inside & mask)
            rest = self.spread(~inside if rest is None else rest & ~inside)
            if chosen.any():
                found.append((space, base, chosen))
        if rest is None or rest.any():
            found.append(("global", 0, rest))
        return found

    def load_generic(
        self, address: Array, width: int, vector: int, mask: Array | None, step: int, strong: bool
    ) -> list[Array]:
        """Load through a generic address."""
        out: list[Array] | None = None
        for space, base, chosen in self.windows(address, mask):
            load = getattr(self, f"load_{space}")
            got = load(address - np.uint64(base), width, vector, chosen, step, strong)
            if out is None:
                out = got
            elif chosen is not None:
                out = [np.where(chosen, g, o) for g, o in zip(got, out, strict=True)]
        return out or [np.zeros((1, 1), f"u{width}")] * vector

    def store_generic(
        self, address: Array, values: Sequence[Array], width: int, mask: Array | None, step: int,
        strong: bool,
    ) -> None:  # fmt: skip
        """Store through a generic address."""
        for space, base, chosen in self.windows(address, mask):
            store = getattr(self, f"store_{space}")
            store(address - np.uint64(base), values, width, chosen, step, strong)

    def report_trap(self, mask: Array, step: int) -> None:
        """Report that threads executed ``trap``."""
        numbers = np.flatnonzero(mask)
        row, lane = divmod(int(numbers[0]), self.width)
        where = f"thread {show_index(self.thread_index(lane))} (block " + (
            f"{show_index(self.block_index(row))})"
        )
        self.report_lanes("trap", "trap", numbers, step, lambda _: f"trap executed by {where}")

    def check_defined(self, undefined: Array, mask: Array | None, step: int) -> None:
        """Report active lanes that use a register that was never written."""
        if not undefined.any():
            return
        bad = self.spread(undefined) & self.spread(self.live if mask is None else mask)
        numbers = np.flatnonzero(bad)
        if numbers.size:
            note = self.launch.program.steps[step].note
            self.report_lanes(
                "init", "unwritten-register", numbers, step,
                lambda _: f"{note}, by {self.who(int(numbers[0]))}",
            )  # fmt: skip

    def finish(self) -> None:
        """End a batch: examine the remaining accesses to shared memory for races."""
        if self.thread_races is not None:
            self.thread_races.end_interval()
