"""Tensor maps (PTX ISA, "Tensors", "tensormap"): a tensor in memory, and boxes cut out of it.

A map is 128 bytes that programs treat as opaque; the order of its fields is the emulator's own
choice. Here, from the lowest byte and with sizes in bytes: address (8), rank less one (4), type,
interleave, swizzle and fill (1 each), box (5 x 4), extents (5 x 4), strides in bytes from the
second dimension on (4 x 8), element strides (5 x 4). Elements along dimension 0 are adjacent in
memory.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.types import Array

MAP_BYTES = 128
MAP_ALIGNMENT = 64
MOST_DIMENSIONS = 5
_FORM = struct.Struct("<QI4B5I5I4Q5I")

ELEMENT_TYPES: tuple[tuple[str, int], ...] = (
    ("u8", 1), ("u16", 2), ("u32", 4), ("s32", 4), ("u64", 8), ("s64", 8), ("f16", 2), ("f32", 4),
    ("f32", 4), ("f64", 8), ("bf16", 2),
)  # fmt: skip
"""PTX type and size in bytes, by the number that a map holds; 8 is f32.ftz. tf32 (11, 12)
is left out: the ISA does not say how its elements are rounded."""

_FLUSHING = 8

SWIZZLE_SPANS = (0, 32, 64, 128)
_PATTERNS = (0, 1, 3, 7)

FIELDS: dict[str, tuple[int, int, int]] = {
    "global_address": (0, 8, 1), "rank": (8, 4, 1), "elemtype": (12, 1, 1),
    "interleave_layout": (13, 1, 1), "swizzle_mode": (14, 1, 1), "fill_mode": (15, 1, 1),
    "box_dim": (16, 4, 5), "global_dim": (36, 4, 5), "global_stride": (56, 8, 4),
    "element_stride": (88, 4, 5),
}  # fmt: skip
"""Fields of a map: first byte, bytes of one value, and number of values."""


class TensorMap(Struct, frozen=True):
    """A tensor in global memory, with the settings for copies of its boxes."""

    address: int
    kind: int
    interleave: int
    swizzle: int
    fill: int
    box: tuple[int, ...]
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def type_name(self) -> str:
        """Return the PTX type of an element."""
        return ELEMENT_TYPES[self.kind][0]

    @property
    def item(self) -> int:
        """Return the size of an element in bytes."""
        return ELEMENT_TYPES[self.kind][1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the number of elements that a copy moves, by dimension."""
        pairs = zip(self.box, self.steps, strict=True)
        return tuple(-(-extent // step) for extent, step in pairs)

    @property
    def size(self) -> int:
        """Return the size of one box in shared memory, in bytes."""
        count = self.item
        for extent in self.shape:
            count *= extent
        return count

    def problem(self, dimensions: int) -> str:
        """Return the reason why a copy with `dimensions` coordinates cannot use the map, or ''."""
        if len(self.box) != dimensions:
            return f"is a map of {len(self.box)} dimensions, not {dimensions}"
        if self.address % 16:
            return "has an address that is not a multiple of 16"
        if any(not 1 <= n <= 256 for n in self.box):
            return f"has a box of {self.box} elements: each must be 1 to 256"
        if any(not 1 <= n <= 8 for n in self.steps):
            return f"has element strides of {self.steps}: each must be 1 to 8"
        if any(n < 1 for n in self.extents):
            return f"has extents of {self.extents} elements"
        if any(n % 16 or n >= 1 << 40 for n in self.strides[1:]):
            return f"has strides of {self.strides[1:]} bytes: each must be a multiple of 16"
        row = self.box[0] * self.item
        if row % 16:
            return f"has rows of {row} bytes in its box: a multiple of 16 is needed"
        if self.swizzle and row > SWIZZLE_SPANS[self.swizzle]:
            return f"has rows of {row} bytes in its box, more than its swizzle spans"
        return ""

    @property
    def lacking(self) -> str:
        """Return a property of the map that the emulator does not support; empty if none."""
        if self.kind >= len(ELEMENT_TYPES):
            return f"element type {self.kind}"
        if self.interleave or self.fill > 1 or self.swizzle >= len(SWIZZLE_SPANS):
            return f"interleave {self.interleave}, swizzle {self.swizzle}, fill {self.fill}"
        if self.swizzle and self.box[0] * self.item < SWIZZLE_SPANS[self.swizzle]:
            return "a swizzle that spans more than a row of the box"
        return ""

    def encode(self) -> bytes:
        """Return the map as bytes."""

        def five(values: Sequence[int], count: int = 5) -> tuple[int, ...]:
            return (*values, *(0,) * count)[:count]

        return _FORM.pack(
            self.address, len(self.box) - 1, self.kind, self.interleave, self.swizzle, self.fill,
            *five(self.box), *five(self.extents), *five(self.strides[1:], 4), *five(self.steps),
        ).ljust(MAP_BYTES, b"\0")  # fmt: skip

    def elements(self, corner: Sequence[int]) -> tuple[Array, Array]:
        """Compute the addresses of a box's elements, in their order in shared memory."""
        places: Array = np.array([self.address], np.uint64).view(np.int64)
        inside: Array = np.ones((1,), bool)
        for d in range(len(self.box)):  # later dimensions go round more slowly
            index = corner[d] + np.arange(self.shape[d], dtype=np.int64) * self.steps[d]
            within = (index >= 0) & (index < self.extents[d])
            places = (index * self.strides[d])[:, None] + places[None, :]
            inside = within[:, None] & inside[None, :]
            places, inside = places.reshape(-1), inside.reshape(-1)
        return places, inside

    def swizzled(self, start: int) -> Array:
        """Return the offset in shared memory of each byte of a box that begins at `start`."""
        offsets = start + np.arange(self.size, dtype=np.int64)
        return offsets ^ ((offsets >> 7 & _PATTERNS[self.swizzle]) << 4)

    @property
    def filling(self) -> bytes:
        """Return the bytes that a copy reads for an element outside of the tensor."""
        if not self.fill:
            return bytes(self.item)
        word = {"f16": "7fff", "bf16": "7fff", "f32": "7fffffff"}.get(self.type_name)
        word = word or ("7fffffffffffffff" if self.type_name == "f64" else "00" * self.item)
        return bytes.fromhex(word)[::-1]

    def as_loaded(self, raw: Array) -> Array:
        """Return elements with subnormals flushed if the element type is ``f32.ftz``. Each row of
        `raw`, and of the result, holds the bytes of one element."""
        if self.kind != _FLUSHING:
            return raw
        bits = np.ascontiguousarray(raw).view("<u4").copy()
        bits[bits & np.uint32(0x7F800000) == 0] &= np.uint32(0x80000000)
        return bits.view(np.uint8).reshape(raw.shape)


def read_map(data: bytes) -> TensorMap:
    """Read a map from its bytes, which may have any values."""
    values = _FORM.unpack_from(data)
    address, rank, kind, interleave, swizzle, fill = values[:6]
    count = min(rank, MOST_DIMENSIONS) + 1
    box, extents, strides, steps = values[6:11], values[11:16], values[16:20], values[20:25]
    item = ELEMENT_TYPES[kind][1] if kind < len(ELEMENT_TYPES) else 1
    return TensorMap(
        address, kind, interleave, swizzle, fill, (*box, 1)[:count], (*extents, 1)[:count],
        (item, *strides, 0)[:count], (1, *steps[1:], 1)[:count],
    )  # fmt: skip
