"""Pass tensors, with their layouts, between two processes through shared memory."""

from __future__ import annotations

import math
import mmap
import os
import sys
from collections.abc import Mapping

import numpy as np

from gpuemu_flow.numerics.dtypes import element_dtype
from gpuemu_flow.runners.buffers import address, byte_span, whole_memory
from gpuemu_flow.runners.slots import Slot
from gpuemu_flow.runners.tensors import MAX_OUTPUT_BYTES, element_type
from gpuemu_flow.types import ELEMENT_TYPES

_ALIGNMENT = 64
_GROWTH = 1 << 20
Arrays = dict[str, np.ndarray]
_SEALED = sys.platform.startswith("linux")  # see memfd.create


class Arena:
    """A memory-mapped file that two processes share; it can grow but never shrinks."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = None
        self._bytes = np.empty(0, dtype=np.uint8)

    def _reach(self, nbytes: int, *, grow: bool) -> None:
        """Map at least `nbytes` bytes; raise ValueError if the file is shorter and may not grow."""
        if self._bytes.size >= nbytes:
            return
        size = os.fstat(self.fd).st_size
        if size < nbytes:
            if not grow or nbytes > 2 * MAX_OUTPUT_BYTES:
                raise ValueError(f"{nbytes} bytes are not in the arena")
            size = -(-max(nbytes, size + size // 2) // _GROWTH) * _GROWTH
            os.ftruncate(self.fd, size)
        # The old mapping lives on as long as arrays refer to it.
        self._map = mmap.mmap(self.fd, size)
        self._bytes = np.frombuffer(self._map, dtype=np.uint8)

    def views(self, slots: Mapping[str, Slot]) -> dict[str, np.ndarray]:
        """Return the tensors in some slots as arrays, without a copy.

        Raises ValueError for a slot outside of the arena.
        """
        out = {}
        for name, slot in slots.items():
            low, high = slot.span()
            if low < 0:
                raise ValueError("a tensor begins before the arena")
            self._reach(max(high, 1), grow=False)
            array = np.ndarray(
                slot.shape, element_dtype(slot.dtype), self._bytes, slot.offset, slot.strides
            )
            # Read-only, as in numpy, for expanded tensors: one write would change several elements.
            array.flags.writeable = 0 not in slot.strides
            out[name] = array
        return out

    def read(self, slots: Mapping[str, Slot]) -> dict[str, np.ndarray]:
        """Return tensors that the other process wrote in C order, read-only.

        The tensors are views if the other process cannot shrink the file. Otherwise they are
        copies, since reading a mapping beyond the end of its file is fatal. Raises ValueError if
        the tensors are larger than `MAX_OUTPUT_BYTES`, since the other process can enlarge the file
        at no cost.
        """
        if sum(_size_of(slot) for slot in slots.values()) > MAX_OUTPUT_BYTES:
            raise ValueError("the outputs are over what an arena holds")
        out = {}
        for name, slot in slots.items():
            dtype = element_dtype(slot.dtype)
            nbytes = _size_of(slot)
            if nbytes == 0:
                array = np.empty(slot.shape, dtype)
            elif _SEALED:
                if slot.offset < 0:
                    raise ValueError("a tensor begins before the arena")
                self._reach(slot.offset + nbytes, grow=False)
                array = np.ndarray(slot.shape, dtype, self._bytes, slot.offset)
            else:
                data = os.pread(self.fd, min(nbytes, MAX_OUTPUT_BYTES), slot.offset)
                array = np.frombuffer(data, dtype).reshape(slot.shape)
            array.flags.writeable = False
            out[name] = array
        return out

    def close(self) -> None:
        """Close the file; arrays on its memory stay valid."""
        os.close(self.fd)
        self.fd = -1

    def lay(self, arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, Slot], Arrays, int]:
        """Copy the whole allocation of each tensor into the arena, one after another."""
        wholes = {name: whole_memory(array) for name, array in arrays.items()}
        slots: dict[str, Slot] = {}
        starts: dict[str, int] = {}
        position = 0
        for name, array in arrays.items():
            start = position = _aligned(position, address(wholes[name]))
            inside = address(array) - address(wholes[name]) if wholes[name].size else 0
            slots[name] = Slot(start + inside, array.shape, array.strides, element_type(array))
            starts[name] = start
            position += wholes[name].size
        self._reach(max(position, 1), grow=True)
        memories = {}
        for name, whole in wholes.items():
            memories[name] = self._bytes[starts[name] : starts[name] + whole.size]
            memories[name][:] = whole
        return slots, memories, position

    def write(
        self, arrays: Mapping[str, np.ndarray], *, start: int = 0, keep_layout: bool = False
    ) -> dict[str, Slot]:
        """Copy tensors into the arena, one after another, from offset `start` on."""
        slots: dict[str, Slot] = {}
        with_gaps: dict[str, tuple[int, int]] = {}  # first byte here, and its address there
        position = start
        for name, array in arrays.items():
            dtype = element_type(array)
            if keep_layout and not array.flags.c_contiguous:
                low, high = byte_span(array)
                position = _aligned(position, low)
                offset, strides = position + address(array) - low, array.strides
                end = position + high - low
                with_gaps[name] = position, low
            else:
                # A tensor without gaps keeps only its alignment.
                position = _aligned(position, address(array) if keep_layout else 0)
                offset = position
                strides = array.strides if keep_layout else _c_strides(array)
                end = position + array.nbytes
            slots[name] = Slot(offset, array.shape, strides, dtype)
            position = end
        self._reach(max(position, 1), grow=True)
        for name, array in arrays.items():
            if name in with_gaps:
                to, low = with_gaps[name]
                memory = whole_memory(array)
                begin, size = low - address(memory), slots[name].span()[1] - to
                self._bytes[to : to + size] = memory[begin : begin + size]
            elif array.size:
                target = np.ndarray(array.shape, array.dtype, self._bytes, slots[name].offset)
                np.copyto(target, array)
        return slots


def _size_of(slot: Slot) -> int:
    """Return the total size of a tensor's elements in bytes, without gaps between them."""
    return ELEMENT_TYPES[slot.dtype].itemsize * math.prod(slot.shape)


def _aligned(position: int, like: int) -> int:
    """Return the first position, from `position` on, that is equal to `like` modulo 64."""
    return position + (like - position) % _ALIGNMENT


def _c_strides(array: np.ndarray) -> tuple[int, ...]:
    strides = []
    step = array.itemsize
    for size in reversed(array.shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
