"""The emulator's view of a process's device: its memory, and what a launch wrote."""

from __future__ import annotations

import bisect
import ctypes
import hashlib
import mmap
import os
from functools import cached_property

import numpy as np

from gpuemu_flow.emulator.host.places import Allocated, Places
from gpuemu_flow.emulator.memory import UNINITIALISED, describe_in
from gpuemu_flow.emulator.types import Array
from gpuemu_flow.model.types import CodePlace

PAGE = 4096
_ONE_STRUCT, _MOST_FIELDS, _MOST_LOOKED_AT = 64, 9, 1 << 24
CONSTANT, HOST_VISIBLE, VARIABLE = 1, 2, 4
"""Flags of an allocation, as gpuemu.h has them."""


class DeviceBlock:
    """One allocation; its name is looked up in the program's source when a finding asks."""

    initialised = False  # the shadow decides, byte by byte, for as long as the allocation lives

    def __init__(
        self, start: int, size: int, flags: int, what: str, sites: tuple[int, ...], places: Places
    ) -> None:
        self.start = start
        self.size = size
        self.end = start + size
        self.flags = flags
        self.what = what
        self.given = ""
        self.given_item = 0
        self._sites = sites
        self._places = places
        self._allocated: Allocated | None = None

    @property
    def writable(self) -> bool:
        return not self.flags & CONSTANT

    @property
    def source(self) -> Allocated:
        """Return what the program's source says about the allocation."""
        if self._allocated is None:
            self._allocated = (
                Allocated("", 0, CodePlace())
                if self.given or self.flags & VARIABLE
                else self._places.allocated(self._sites)
            )
        return self._allocated

    @property
    def name(self) -> str:
        """Return the variable's name, or the call that made the block."""
        return self.given or self.source.name or f"the memory of {self.what}"

    @property
    def item(self) -> int:
        """Return the bytes of one element, for messages."""
        item = self.given_item or self.source.item or 1
        return item if self.size % item == 0 else 1

    @cached_property
    def of_numbers(self) -> bool:
        """Tell whether the block is known to hold numbers, which have no padding between them."""
        return self.what == "tensor" or self.item > 1 or self._places.of_numbers(self.source)

    def describe(self, offset: int) -> str:
        """Describe an offset of the arena by this block, and say where the block was made."""
        place = self.source.place
        made = f" ({self.what} at {place})" if place.line else ""
        if self.item > 1 or self.given_item == 1:
            return describe_in(self, offset) + made  # type: ignore[arg-type]
        into = offset - self.start
        if into < 0:
            return f"{-into:,} bytes before {self.name} ({self.size:,} bytes){made}"
        if into >= self.size:
            past = into - self.size
            far = f"{past:,} bytes past the end of" if past else "just past"
            return f"byte {into:,} of {self.name}, {far} its {self.size:,} bytes{made}"
        return f"byte {into:,} of {self.name}{made}"


class Journal:
    """The pages that a launch wrote, with their content and shadow before; C and numpy fill it."""

    def __init__(self, data: Array, shadow: Array) -> None:
        count = len(data) // PAGE
        self._data, self._shadow = data.reshape(count, PAGE), shadow.reshape(count, PAGE)
        self._fd = os.memfd_create("gpuemu-journal", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, count * 2 * PAGE)
        self._log = np.frombuffer(mmap.mmap(self._fd, count * 2 * PAGE), np.uint8).reshape(
            count, 2, PAGE
        )
        self.flags: Array = np.zeros(count, np.uint8)
        self._touched: Array = np.zeros(count, np.uint32)
        self._count: Array = np.zeros(1, np.uint64)

    def pointers(self) -> dict[str, int]:
        """Return addresses for the fields of C's arguments."""
        return {
            "pages": self.flags.ctypes.data, "touched": self._touched.ctypes.data,
            "journal": self._log.ctypes.data, "journaled": self._count.ctypes.data,
        }  # fmt: skip

    def touch(self, offsets: Array, size: int) -> None:
        """Keep the pages at some offsets, which are about to be written."""
        pages = (offsets >> np.uint64(12)).astype(np.int64).ravel()
        fresh = pages[
            (pages < len(self.flags)) & (self.flags[np.minimum(pages, len(self.flags) - 1)] == 0)
        ]
        if size > 16:
            last = (offsets + np.uint64(size - 1)) >> np.uint64(12)
            fresh = np.concatenate(
                [fresh, np.minimum(last.astype(np.int64).ravel(), len(self.flags) - 1)]
            )
        if fresh.size:
            fresh = np.unique(fresh)
            fresh = fresh[self.flags[fresh] == 0]
            at = int(self._count[0])
            self._log[at : at + fresh.size, 0] = self._data[fresh]
            self._log[at : at + fresh.size, 1] = self._shadow[fresh]
            self._touched[at : at + fresh.size] = fresh
            self.flags[fresh] = 1
            self._count[0] = at + fresh.size

    def _pages(self) -> Array:
        return self._touched[: int(self._count[0])]

    def unchanged(self) -> bool:
        """Tell whether all pages hold what they held before."""
        pages = self._pages()
        for at in range(0, len(pages), 256):
            some, log = pages[at : at + 256], self._log[at : at + 256]
            if (self._data[some] != log[: len(some), 0]).any() or (
                self._shadow[some] != log[: len(some), 1]
            ).any():
                return False
        return True

    def restore(self) -> None:
        """Undo all writes."""
        pages = self._pages()
        for at in range(0, len(pages), 4096):
            some = pages[at : at + 4096]
            self._data[some] = self._log[at : at + len(some), 0]
            self._shadow[some] = self._log[at : at + len(some), 1]
        self.clear()

    def clear(self) -> None:
        pages = self._pages()
        self.flags[pages] = 0
        if len(pages) > 1 << 14:  # give the memory back
            size = self._log.size
            libc = ctypes.CDLL(None)
            libc.madvise(ctypes.c_void_p(self._log.ctypes.data), ctypes.c_size_t(size), 9)
        self._count[0] = 0


class DeviceArena:
    """Global memory of a device, for launches; see `memory.LaunchArena`."""

    def __init__(self, memfd: int, size: int, places: Places) -> None:
        self._all = np.frombuffer(mmap.mmap(memfd, 2 * size), np.uint8)
        self._data, self._shadow = self._all[:size], self._all[size:]
        self._places = places
        self._starts: list[int] = []
        self._freed: dict[int, tuple[DeviceBlock, tuple[int, ...]]] = {}
        self.buffers: list[DeviceBlock] = []
        self.stored = 0
        self.journal = Journal(self._data, self._shadow)
        self._resize()

    def _resize(self) -> None:
        end = self.buffers[-1].end + (1 << 20) if self.buffers else 1 << 20
        end = min(-(-end // PAGE) * PAGE, len(self._data))
        self.data, self.shadow = self._data[:end], self._shadow[:end]

    def add(self, start: int, size: int, flags: int, what: str, sites: tuple[int, ...]) -> None:
        if not 0 < start < start + size + PAGE < len(self._data):
            raise ValueError("an allocation outside of the device")
        block = DeviceBlock(start, size, flags, what, sites, self._places)
        at = bisect.bisect(self._starts, start)
        self._starts.insert(at, start)
        self.buffers.insert(at, block)
        self._resize()

    def remove(self, start: int, sites: tuple[int, ...]) -> None:
        """Record that an allocation was freed."""
        at = bisect.bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == start:
            if len(self._freed) > 10_000:
                self._freed.clear()
            self._freed[start] = (self.buffers[at], sites)
            del self._starts[at], self.buffers[at]
            self._resize()

    def is_padding(self, start: int, size: int) -> bool:
        """Tell whether all that nobody wrote can be padding: each piece ends where a value of a
        size that kernels store (`stored`, as bits) may begin, is smaller, and is in each struct."""
        block = self.find(start, start + size)
        if size > _MOST_LOOKED_AT or (block is not None and block.of_numbers):
            return False
        unwritten = self._shadow[start : start + size] == UNINITIALISED
        edges = np.flatnonzero(np.diff(unwritten, prepend=False, append=False))
        begins, sizes = edges[::2], edges[1::2] - edges[::2]
        fits = np.zeros(sizes.shape, bool)
        for item in (2, 4, 8, 16):
            if self.stored & item:
                fits |= (sizes < item) & ((start + begins + sizes) % item == 0)
        if not fits.all() or not fits.size or begins[0] == 0:
            return False
        if size <= _ONE_STRUCT:
            return True
        for count in range(1, min(_MOST_FIELDS, len(begins))):
            period = begins[count] - begins[0]
            if (
                (begins[count:] - begins[:-count] == period).all()
                and (sizes[count:] == sizes[:-count]).all()
                and begins[0] < period >= size - begins[-1]
            ):
                return True
        return False

    def at(self, start: int) -> DeviceBlock | None:
        at = bisect.bisect_left(self._starts, start)
        return self.buffers[at] if at < len(self._starts) and self._starts[at] == start else None

    def freed(self, start: int) -> str:
        """Describe a block that was freed."""
        found = self._freed.get(start)
        if found is None:
            return "memory"
        place = self._places.of(found[1])
        return found[0].name + (f" (freed at {place})" if place.line else "")

    def find(self, low: int, high: int) -> DeviceBlock | None:
        at = bisect.bisect(self._starts, low) - 1
        return self.buffers[at] if at >= 0 and high <= self.buffers[at].end else None

    def overlapping(self, low: int, high: int) -> set[int]:
        first = max(0, bisect.bisect(self._starts, low) - 1)
        last = bisect.bisect_left(self._starts, high)
        return {n for n in range(first, last) if self.buffers[n].end > low}

    def describe(self, offset: int) -> str:
        if not self.buffers:
            return "no memory of the device"
        at = bisect.bisect(self._starts, offset)
        near = self.buffers[max(0, at - 1) : at + 1]
        freed = [b for b, _ in self._freed.values() if b.start <= offset < b.end]
        best = min(near, key=lambda b: max(b.start - offset, offset - b.end + 1, 0))
        if freed and not best.start <= offset < best.end:
            place = self._places.of(self._freed[freed[-1].start][1])
            return f"{freed[-1].describe(offset)}, freed at {place}"
        return best.describe(offset)

    def touch(self, offsets: Array, size: int) -> None:
        """Keep the pages at some offsets, which are about to be written."""
        self.journal.touch(offsets, size)

    def write(self, start: int, data: bytes, state: int) -> None:
        """Write bytes of a variable or of parameters, with their state."""
        self._data[start : start + len(data)] = np.frombuffer(data, np.uint8)
        self._shadow[start : start + len(data)] = state

    def shared_with_host(self) -> bytes:
        """Return a digest of the memory that the host may change without a call."""
        digest = hashlib.blake2b(digest_size=16)
        for block in self.buffers:
            if block.flags & HOST_VISIBLE:
                digest.update(self._data[block.start : block.end].data)
        return digest.digest()
