"""Memory layouts: place the elements of a tensor in memory as a layout demands, with guard zones.

``contiguous``
    Row-major.
``strided``
    Row-major order with gaps: every second element of a row, and a gap after each row, matrix and
    so on, so that no two dims can be treated as one.
``transposed``
    The last two dims are exchanged in memory. Where that changes nothing (fewer than two dims, or
    one of the last two of size 0 or 1) the tensor is ``strided`` instead.
``offset``
    Row-major; the address of the first byte is a multiple of the itemsize, but not of 16.
``padded``
    Rows without gaps between their elements, and a gap after each row, as in a slice of a wider
    tensor. If the tensor has only one row, it is ``strided`` instead.
``permuted``
    The second and the third dim from the end are exchanged in memory, as in ``x.transpose(1, 2)``
    of [B, S, H, D]; the elements of a row are neighbours. Where that changes nothing the tensor is
    ``padded`` instead.
``expanded``
    Read-only, with stride 0 along the first dim that has more than one element. If there is no such
    dim, the tensor is contiguous and read-only.

`effective_layout` tells which of these layouts a shape really gets. Gaps and guard zones hold NaN
with a special payload, or 0xA5 in every byte for integers and booleans. If an op reads them, this
shows in its result; if it writes to them, `LaidOut.intact` finds it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.model.types import Shape, effective_layout

Array = NDArray[Any]

ALIGNMENT = 64  # bytes; for the start of every layout but `offset`, and the size of guard zones
ELEMENT_STEP = 2  # `strided`: distance of neighbours in a row, in elements
ROW_GAP = 3
"""Number of elements in the gap after each row (`padded`), or after each row, matrix and so on
(`strided`). The number is odd, so that rows of even length begin at odd offsets, too."""
GUARD_BYTES = 4096
LONGEST_ROW = 1 << 16  # largest number of bytes by which a row extends a guard zone

FILL = b"\xa5"  # neither zero nor part of a plausible number
FIRST_FILL = 0x5B  # what new memory of a function or script holds in the judged call
FILLS = (FILL, bytes((FIRST_FILL,)))

# Little-endian bit patterns. Each float's is a quiet NaN that no arithmetic produces.
SENTINELS: dict[str, bytes] = {
    "float64": (0x7FF8A5A5A5A5A5A5).to_bytes(8, "little"),
    "float32": (0x7FC5A5A5).to_bytes(4, "little"),
    "float16": (0x7EA5).to_bytes(2, "little"),
    "bfloat16": (0x7FE5).to_bytes(2, "little"),
    "float8_e5m2": b"\x7f",
    "float8_e4m3fn": b"\xff",
}


@lru_cache(maxsize=64)
def sentinel(dtype: np.dtype[Any]) -> bytes:
    """Return the bytes that fill a gap of one element: a special NaN, or 0xA5 in every byte."""
    return SENTINELS.get(dtype.name, FILL * dtype.itemsize)


def expanded_axis(shape: Shape) -> int | None:
    """Return the axis that `expanded` repeats: the first with a size above 1; None if none has."""
    return next((axis for axis, size in enumerate(shape) if size > 1), None)


def reduced_shape(shape: Shape) -> Shape:
    """Return the shape of an `expanded` tensor's distinct values: the repeated axis has size 1."""
    axis = expanded_axis(shape)
    return shape if axis is None else (*shape[:axis], 1, *shape[axis + 1 :])


def describe(layout: str, shape: Shape) -> tuple[int, ...]:
    """Return the strides, in elements, of a tensor of `shape` in `layout`."""
    layout = effective_layout(layout, shape)
    if layout == "transposed":
        swapped = _row_major((*shape[:-2], shape[-1], shape[-2]))
        return (*swapped[:-2], swapped[-1], swapped[-2])
    if layout == "permuted":
        *outer, high, low, last = _row_major((*shape[:-3], shape[-2], shape[-3], shape[-1]))
        return (*outer, low, high, last)
    if layout == "padded":
        return (*_row_major((*shape[:-1], shape[-1] + ROW_GAP))[:-1], 1)
    if layout == "strided":
        return _row_major(shape, ELEMENT_STEP, ROW_GAP)
    if layout == "expanded":
        strides = list(_row_major(reduced_shape(shape)))
        strides[expanded_axis(shape) or 0] = 0
        return tuple(strides)
    return _row_major(shape)


def _row_major(shape: Shape, step: int = 1, gap: int = 0) -> tuple[int, ...]:
    strides = []
    pitch = step
    for size in reversed(shape):
        strides.append(pitch)
        pitch = pitch * max(size, 1) + gap
    return tuple(reversed(strides))


class Placement(Struct, frozen=True):
    """The position of a tensor's elements in a buffer whose start is aligned to `ALIGNMENT`."""

    shape: Shape
    strides: tuple[int, ...]  # in bytes
    offset: int  # Byte of the first element
    nbytes: int  # size of the whole buffer, guard zones included; a multiple of `ALIGNMENT`
    writable: bool  # False for `expanded`


@lru_cache(maxsize=1024)
def place(layout: str, shape: Shape, itemsize: int, *, guarded: bool = False) -> Placement:
    """Compute a tensor's offset and strides, and the size of the buffer that it needs. If
    `guarded`, a guard zone lies before the tensor and another after it. Each has at least
    ``GUARD_BYTES + min(row, LONGEST_ROW)`` bytes, where ``row`` is the number of bytes of one
    row."""
    shape = tuple(shape)
    layout = effective_layout(layout, shape)
    strides = describe(layout, shape)
    guard = 0
    if guarded:
        row = shape[-1] * itemsize if shape else itemsize
        guard = _aligned(GUARD_BYTES + min(row, LONGEST_ROW))
    offset = guard + (itemsize if layout == "offset" else 0)
    extent = 0
    if all(shape):
        extent = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if layout == "strided" and extent:
        extent += ELEMENT_STEP - 1 + ROW_GAP  # the gap behind the last row
    if layout == "padded" and extent:
        extent += ROW_GAP
    nbytes = _aligned(max(offset + extent * itemsize + guard, itemsize))
    in_bytes = tuple(stride * itemsize for stride in strides)
    return Placement(shape, in_bytes, offset, nbytes, layout != "expanded")


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class LaidOut(Struct, frozen=True):
    """A tensor in a layout, with the buffer that holds it."""

    array: Array  # the tensor itself, a view of `buffer`
    buffer: NDArray[np.uint8]  # Everything: the elements, the gaps between them and the guard zones
    placement: Placement

    def intact(self) -> bool:
        """Tell whether no byte outside the tensor's elements has changed. This needs a copy of the
        buffer for a moment."""
        dtype = self.array.dtype
        pattern = sentinel(dtype)
        rest = self.buffer.copy()
        items = _items(rest, dtype.itemsize)
        expected = np.frombuffer(pattern, dtype=items.dtype)[0]
        elements = np.ndarray(
            self.placement.shape,
            items.dtype,
            buffer=rest,
            offset=self.placement.offset,
            strides=self.placement.strides,
        )
        elements[...] = expected
        return bool((items == expected).all())


def _items(buffer: NDArray[np.uint8], itemsize: int) -> Array:
    """Return the bytes of a buffer as unsigned integers of the elements' size."""
    return buffer.view(np.dtype(f"u{itemsize}"))


def _new_buffer(nbytes: int) -> NDArray[np.uint8]:
    """Return `nbytes` of uninitialised memory that starts at a multiple of `ALIGNMENT`."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    return raw[start : start + nbytes]


def lay_out_guarded(values: Array, layout: str, *, guarded: bool = True) -> LaidOut:
    """Copy values into memory in a layout, between guard zones if `guarded`. Raises ValueError:
    Unknown layout, or values that differ along the repeated axis of `expanded`."""
    placement = place(layout, values.shape, values.dtype.itemsize, guarded=guarded)
    buffer = _new_buffer(placement.nbytes)
    items = _items(buffer, values.dtype.itemsize)
    items[...] = np.frombuffer(sentinel(values.dtype), dtype=items.dtype)[0]
    array: Array = np.ndarray(
        placement.shape,
        values.dtype,
        buffer=buffer,
        offset=placement.offset,
        strides=placement.strides,
    )
    if placement.writable:
        array[...] = values
        return LaidOut(array, buffer, placement)
    axis = expanded_axis(placement.shape) or 0
    once = (slice(None),) * axis + (slice(0, 1),)
    array[once] = values[once]
    if values.strides[axis] != 0 and not _same_bits(array, values):
        raise ValueError(f"values differ along axis {axis}, which the expanded layout repeats")
    array.flags.writeable = False
    return LaidOut(array, buffer, placement)


def _same_bits(first: Array, second: Array) -> bool:
    unsigned = np.dtype(f"u{first.dtype.itemsize}")
    return np.array_equal(first.view(unsigned), np.ascontiguousarray(second).view(unsigned))


def lay_out(values: Array, layout: str) -> Array:
    """Return the values in a layout, without guard zones. The values are copied to new memory,
    unless they are contiguous and this layout is, too. Parameters and errors are those of
    `lay_out_guarded`."""
    if effective_layout(layout, values.shape) == "contiguous" and values.flags.c_contiguous:
        if layout == "expanded":
            values = values.view()
            values.flags.writeable = False
        return values
    return lay_out_guarded(values, layout, guarded=False).array


def multi_index(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index tuple of a flat position in C order; empty for 0-d."""
    return tuple(int(i) for i in np.unravel_index(position, shape)) if shape else ()
