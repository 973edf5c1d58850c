"""Global memory: one arena of emulated addresses, with guard zones and a state for each byte."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.errors import bad_launch
from gpuemu_flow.emulator.types import Array
from gpuemu_flow.numerics.layouts import FILL

GLOBAL_BASE = 0x6000_0000_0000
"""Start of the arena's range of addresses. In a program that `host` runs, the memory really lies
here: the range is free, as Linux puts libraries and stacks above 0x7000_0000_0000."""
SHARED_BASE = 0x0100_0000_0000
LOCAL_BASE = 0x0200_0000_0000
WINDOW = 1 << 36

ALIGNMENT = 512
MAX_ARENA = 1 << 35

UNALLOCATED, UNINITIALISED, WRITTEN, READ_ONLY = 0, 1, 2, 3
"""States of a byte of memory, as its shadow byte holds them."""

PATTERN = FILL[0]
"""Byte that fills memory which nobody has written."""


class Buffer(Struct, frozen=True):
    """One allocation of the arena."""

    name: str
    start: int
    size: int
    item: int
    initialised: bool
    writable: bool = True

    @property
    def end(self) -> int:
        return self.start + self.size


class LaunchArena:
    """Global memory of one launch."""

    def __init__(self, sizes: list[int]) -> None:
        total = 2 * ALIGNMENT + sum(size + 2 * guard_bytes(size) + ALIGNMENT for size in sizes)
        if total > MAX_ARENA:
            raise bad_launch(f"the buffers need {total:,} bytes", f"at most {MAX_ARENA:,}")
        capacity = -(-total // ALIGNMENT) * ALIGNMENT
        self.data: Array = np.zeros(capacity, np.uint8)
        self.shadow: Array = np.zeros(capacity, np.uint8)
        self.buffers: list[Buffer] = []
        self.journal: Any = None
        self._top = ALIGNMENT
        self._end = ALIGNMENT

    def reserve(self, size: int) -> int:
        start = self._end
        self._end += size
        return start

    def rewind(self, top: int) -> None:
        """Make the next allocations begin at offset `top`, which lies in a range from `reserve`."""
        self._top = top

    def allocate(
        self, name: str, size: int, data: bytes | None, item: int, *, writable: bool = True,
        initialised: bool = True,
    ) -> int:  # fmt: skip
        guard = guard_bytes(size)
        start = -(-(self._top + guard) // ALIGNMENT) * ALIGNMENT
        self._top = start + size + guard
        initialised = initialised and data is not None
        self.buffers.append(Buffer(name, start, size, item, initialised, writable))
        if data is None:
            self.data[start : start + size] = PATTERN
            self.shadow[start : start + size] = UNINITIALISED
        else:
            self.data[start : start + size] = np.frombuffer(data, np.uint8)
            state = WRITTEN if initialised else UNINITIALISED
            self.shadow[start : start + size] = state if writable else READ_ONLY
        return GLOBAL_BASE + start

    def read(self, buffer: Buffer) -> Array:
        return self.data[buffer.start : buffer.end]

    def find(self, low: int, high: int) -> Buffer | None:
        for buffer in self.buffers:
            if buffer.start <= low and high <= buffer.end:
                return buffer
        return None

    def is_padding(self, start: int, size: int) -> bool:
        return False  # buffers of numbers have none

    def overlapping(self, low: int, high: int) -> set[int]:
        """List the numbers of the buffers with bytes from `low` to `high`, `high` excluded."""
        return {n for n, b in enumerate(self.buffers) if b.start < high and low < b.end}

    def touch(self, offsets: Array, size: int) -> None:
        """Do nothing: a launch that is made again begins with a new arena."""

    def describe(self, offset: int) -> str:
        """Describe an offset in words: ``x[17] + 2 bytes`` or ``4 bytes past the end of x``."""
        if not self.buffers:
            return "no buffer"

        def distance(buffer: Buffer) -> int:
            return max(buffer.start - offset, offset - buffer.end + 1, 0)

        nearest = min(self.buffers, key=distance)
        return describe_in(nearest, offset)


class SideBySide:
    """An arena shared by several cases: their n-th allocations lie side by side. An access by one
    instruction then touches neighbouring buffers, for all cases at once."""

    def __init__(self, arena: LaunchArena, count: int) -> None:
        self._arena = arena
        self._count = count
        self._tops: list[int] = []
        self._case = -1
        self._calls = 0

    @staticmethod
    def room(sizes: list[int]) -> int:
        """Return the bytes that an arena needs, beyond `sizes`, to place buffers side by side."""
        return ALIGNMENT * len(sizes)

    @property
    def buffers(self) -> list[Buffer]:
        return self._arena.buffers

    @property
    def data(self) -> Array:
        return self._arena.data

    def begin_case(self) -> None:
        self._case += 1
        self._calls = 0

    def allocate(self, name: str, size: int, data: bytes | None, item: int, **options: bool) -> int:
        """Place a buffer of the case that `begin_case` began; see `LaunchArena.allocate`."""
        arena = self._arena
        stride = (-(-(size + 2 * guard_bytes(size)) // ALIGNMENT) + 1) * ALIGNMENT
        if self._case == 0:
            self._tops.append(arena.reserve(self._count * stride))
        arena.rewind(self._tops[self._calls] + self._case * stride)
        self._calls += 1
        return arena.allocate(name, size, data, item, **options)


def describe_in(buffer: Buffer, offset: int) -> str:
    """Describe an offset relative to one buffer."""
    into = offset - buffer.start
    if into < 0:
        return f"{-into:,} bytes before {buffer.name} ({buffer.size:,} bytes)"
    if into >= buffer.size:
        past = into - buffer.size
        if not past:
            count = buffer.size // buffer.item
            return f"{buffer.name}[{into // buffer.item:,}], just past its {count:,} elements"
        element = f"{buffer.name}[{into // buffer.item:,}]"
        return f"{element}, {past:,} bytes past the end ({buffer.size // buffer.item:,} elements)"
    number, rest = divmod(into, buffer.item)
    return f"{buffer.name}[{number:,}]" + (f" + {rest} bytes" if rest else "")


def guard_bytes(size: int) -> int:
    """Return the size of each guard zone of a buffer; memory in guard zones is never used."""
    return min(max(size, 1 << 16), 1 << 20)
