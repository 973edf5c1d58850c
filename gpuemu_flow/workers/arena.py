"""Tensors in memory: shared between two processes, and watched for writes to the inputs."""

from __future__ import annotations

import math
import mmap
import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct, field

from gpuemu_flow.model.types import ELEMENT_TYPES, Failure, FailureKind
from gpuemu_flow.numerics.dtypes import element_dtype
from gpuemu_flow.workers.api import Slot
from gpuemu_flow.workers.tensors import MAX_OUTPUT_BYTES, element_type

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

    def move(self, to: int, of: int, size: int) -> None:
        """Copy bytes from one position to another; raise ValueError if they are outside."""
        if min(to, of, size) < 0:
            raise ValueError("a position before the arena")
        self._reach(max(to, of) + size, grow=True)
        self._bytes[to : to + size] = self._bytes[of : of + size]

    def lay(
        self, arrays: Mapping[str, np.ndarray], start: int = 0
    ) -> tuple[dict[str, Slot], Arrays, int]:
        """Copy the whole allocation of each tensor into the arena, one after another."""
        wholes = {name: whole_memory(array) for name, array in arrays.items()}
        slots: dict[str, Slot] = {}
        starts: dict[str, int] = {}
        position = start
        for name, array in arrays.items():
            starts[name] = position = _aligned(position, address(wholes[name]))
            inside = address(array) - address(wholes[name]) if wholes[name].size else 0
            slots[name] = Slot(position + inside, array.shape, array.strides, element_type(array))
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


# Check the memory of inputs for writes, restore it, and reuse it.


def address(array: np.ndarray) -> int:
    """Return the address of the first element."""
    return int(array.__array_interface__["data"][0])


def byte_span(array: np.ndarray) -> tuple[int, int]:
    """Return the lowest address of an array's elements, and the address after the last byte.

    The two are equal for an empty array.
    """
    low = high = address(array)
    if array.size == 0:
        return low, low
    for size, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (size - 1) * stride
        else:
            high += (size - 1) * stride
    return low, high + array.itemsize


def whole_memory(array: np.ndarray) -> np.ndarray:
    """Return all bytes of the allocation behind an array, gaps and guard zones included.

    Raises ValueError: The allocation is not one contiguous array.
    """
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if root.flags.c_contiguous:
        whole: np.ndarray = root.reshape(-1).view(np.uint8)
        return whole
    for candidate in (root, array):
        # With its axes sorted by stride, any permutation of a contiguous array is contiguous again.
        descending = sorted(range(candidate.ndim), key=[-s for s in candidate.strides].__getitem__)
        ordered = candidate.transpose(descending)
        if ordered.flags.c_contiguous:
            memory: np.ndarray = ordered.reshape(-1).view(np.uint8)
            return memory
    raise ValueError("the array's memory is not one contiguous allocation")


def same_bytes(first: np.ndarray, second: np.ndarray) -> bool:
    """Tell whether two arrays without gaps have equal bytes, comparing eight at a time."""
    if first.nbytes != second.nbytes:
        return False
    one, other = (array.reshape(-1).view(np.uint8) for array in (first, second))
    words = one.size // 8 * 8
    same = one[:words].view(np.uint64) == other[:words].view(np.uint64)
    return bool(same.all()) and bool((one[words:] == other[words:]).all())


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.dtype(f"u{array.itemsize}"))


def as_number(value: Any) -> float:
    """Return one element of any dtype as a float; the absolute value if it is complex."""
    array = np.asarray(value)
    return float((np.abs(array) if array.dtype.kind == "c" else array).astype(np.float64))


class _Buffer(Struct):
    """One input: the array that is passed, its memory, and the memory's saved content."""

    array: np.ndarray
    memory: np.ndarray
    before: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))

    def elements(self, memory: np.ndarray) -> np.ndarray:
        """Return an array in `memory` of the same shape, strides, dtype and offset as `array`."""
        offset = address(self.array) - address(self.memory) if self.memory.size else 0
        shape, strides = self.array.shape, self.array.strides
        laid: np.ndarray = np.ndarray(shape, self.array.dtype, memory, offset, strides)
        return laid

    def span(self) -> np.ndarray:
        """Return the bytes from the lowest element to the highest, gaps included."""
        low, high = byte_span(self.array)
        start = low - address(self.memory) if high > low else 0
        return self.memory[start : start + high - low]

    def fits(self, other: _Buffer) -> bool:
        """Tell whether another buffer's elements and gaps can be copied to this one."""
        return (
            self.memory.flags.writeable
            and self.array.dtype == other.array.dtype
            and self.array.shape == other.array.shape
            and self.array.strides == other.array.strides
        )


class InputBuffers:
    """The inputs of one call."""

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        memories: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._buffers = {
            name: _Buffer(array, memories[name] if memories else whole_memory(array))
            for name, array in arrays.items()
        }

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays to pass to the program."""
        return {name: buffer.array for name, buffer in self._buffers.items()}

    def pristine(self) -> dict[str, np.ndarray]:
        """Return the arrays with the content that `remember` saved."""
        return {name: buffer.elements(buffer.before) for name, buffer in self._buffers.items()}

    def overwrite(self, arrays: Mapping[str, np.ndarray]) -> bool:
        """Write new values over the old ones; change nothing, and return False, if one differs.

        They differ by name, shape, strides or dtype.
        """
        mine = self._buffers
        new = {name: _Buffer(array, whole_memory(array)) for name, array in arrays.items()}
        fits = mine.keys() == new.keys() and all(mine[n].fits(each) for n, each in new.items())
        for name, each in new.items() if fits else ():
            mine[name].span()[:] = each.span()
        return fits

    def remember(self) -> None:
        """Save the present content of the memory."""
        for buffer in self._buffers.values():
            if buffer.before.size == buffer.memory.size:  # new pages are slow
                buffer.before[:] = buffer.memory
            else:
                buffer.before = buffer.memory.copy()

    def violations(self, mutates: tuple[str, ...]) -> list[Failure]:
        """Report forbidden writes to the inputs' memory since `remember`.

        The elements of inputs in `mutates` may be written to, but not the memory around them.
        """
        found = []
        for name, buffer in self._buffers.items():
            if not same_bytes(buffer.memory, buffer.before):
                found += _outside(name, buffer)
                found += _modified(name, buffer) if name not in mutates else []
        return found


def _outside(name: str, buffer: _Buffer) -> list[Failure]:
    """Report writes to the gaps between elements and to the guard zones."""
    expected = buffer.before.copy()
    elements = buffer.elements(expected)
    elements[...] = buffer.array
    wrong = int(np.count_nonzero(expected != buffer.memory))
    if not wrong:
        return []
    message = f"{wrong} bytes of memory round the elements of input {name!r} were overwritten"
    return [Failure(FailureKind.OUT_OF_BOUNDS, message, name)]


def _modified(name: str, buffer: _Buffer) -> list[Failure]:
    return changed_input(name, buffer.elements(buffer.before), buffer.array)


def changed_inputs(
    before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]
) -> list[Failure]:
    """Report changes to inputs; see `changed_input`."""
    return [
        failure
        for name, array in after.items()
        for failure in changed_input(name, before[name], array)
    ]


def changed_input(name: str, before: np.ndarray, after: np.ndarray) -> list[Failure]:
    """Report a change to an input that the program must not modify; return [] if there is none."""
    if before.flags.c_contiguous and after.flags.c_contiguous and same_bytes(before, after):
        return []
    differs = _bits(after) != _bits(before)
    if not differs.any():
        return []
    places = np.argwhere(differs)
    index = tuple(int(i) for i in places[0])
    return [
        Failure(
            FailureKind.INPUT_MODIFIED,
            f"the program changed {len(places)} of {after.size} elements of input {name!r}; "
            f'`mutates = ["{name}"]` says that it may',
            name,
            index,
            as_number(before[index]),
            as_number(after[index]),
        )
    ]
