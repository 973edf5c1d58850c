"""Layouts: the memory is as the name says, and writes outside the elements are found."""

from __future__ import annotations

import math

import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.model.types import DTYPES, LAYOUTS, effective_layout
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.numerics.layouts import (
    ALIGNMENT,
    GUARD_BYTES,
    describe,
    lay_out,
    lay_out_guarded,
    place,
    reduced_shape,
)

SHAPES = [(), (1,), (5,), (0,), (3, 0, 2), (1, 1), (4, 7), (1, 7), (4, 1), (2, 3, 5), (2, 1, 3, 4)]


def numbered(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    return (np.arange(math.prod(shape)) % 100).astype(numpy_dtype(dtype)).reshape(shape)


def values_for(layout: str, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    if layout == "expanded":
        return np.broadcast_to(numbered(reduced_shape(shape), dtype), shape)
    return numbered(shape, dtype)


def strides_in_elements(array: np.ndarray) -> tuple[int, ...]:
    return tuple(stride // array.itemsize for stride in array.strides)


@for_each("shape", SHAPES)
def test_values_survive_and_strides_are_as_described(shape: tuple[int, ...]):
    for layout in LAYOUTS:
        values = values_for(layout, shape)
        array = lay_out(values, layout)
        assert array.shape == shape
        assert array.dtype == values.dtype
        np.testing.assert_array_equal(array, values)
        laid = lay_out_guarded(values, layout)
        assert strides_in_elements(laid.array) == describe(layout, shape)
        np.testing.assert_array_equal(laid.array, values)
        assert laid.intact()


@for_each("layout", LAYOUTS)
def test_every_dtype_in_every_layout(layout: str):
    for dtype in sorted(DTYPES):
        values = values_for(layout, (3, 4), dtype)
        laid = lay_out_guarded(values, layout)
        assert laid.array.dtype == numpy_dtype(dtype)
        assert laid.array.tobytes() == values.tobytes()
        assert laid.intact()


def test_strides_by_hand():
    assert describe("contiguous", (2, 3, 4)) == (12, 4, 1)
    assert describe("offset", (2, 3, 4)) == (12, 4, 1)
    assert describe("transposed", (2, 3, 4)) == (12, 1, 3)
    # A row is 4 elements 2 apart and 3 more; a matrix is 3 rows of 11 and 3 more.
    assert describe("strided", (2, 3, 4)) == (36, 11, 2)
    assert describe("expanded", (2, 3, 4)) == (0, 4, 1)
    assert describe("expanded", (1, 3, 4)) == (4, 0, 1)
    assert describe("strided", (5,)) == (2,)
    assert describe("padded", (2, 3, 4)) == (21, 7, 1)
    assert describe("padded", (3, 1)) == (4, 1)
    assert describe("permuted", (2, 3, 4)) == (4, 8, 1)
    assert describe("permuted", (2, 3, 4, 5)) == (60, 5, 15, 1)
    assert describe("contiguous", ()) == ()


@for_each(
    ("layout", "shape", "effective"),
    [
        ("transposed", (5,), "strided"),
        ("transposed", (), "contiguous"),
        ("transposed", (3, 1), "strided"),
        ("transposed", (2, 3), "transposed"),
        ("strided", (1, 1), "contiguous"),
        ("strided", (1, 2), "strided"),
        ("expanded", (1, 1), "contiguous"),
        ("expanded", (1, 2), "expanded"),
        ("offset", (), "offset"),
        ("padded", (5,), "strided"),
        ("padded", (1, 1, 5), "strided"),
        ("padded", (1, 1), "contiguous"),
        ("padded", (), "contiguous"),
        ("padded", (2, 1, 5), "padded"),
        ("permuted", (2, 3), "padded"),
        ("permuted", (2, 1, 5), "padded"),
        ("permuted", (1, 1, 5), "strided"),
        ("permuted", (3, 2, 1), "permuted"),
        ("permuted", (7, 1, 3, 2), "padded"),
    ],
)
def test_a_layout_that_a_shape_cannot_have_says_what_it_is_instead(
    layout: str, shape: tuple[int, ...], effective: str
):
    assert effective_layout(layout, shape) == effective
    assert describe(layout, shape) == describe(effective, shape)


def test_no_two_dims_of_a_strided_tensor_collapse_into_one():
    outer, middle, inner = describe("strided", (2, 3, 4))
    assert inner > 1
    assert middle > 4 * inner
    assert outer > 3 * middle


def test_padded_and_permuted_memory_is_that_of_a_slice_and_of_a_transpose():
    wide = np.zeros((2, 5, 7), np.float32)
    assert lay_out(wide[..., :4], "padded").strides == wide[..., :4].strides
    heads = np.zeros((2, 5, 3, 4), np.float32).transpose(0, 2, 1, 3)
    assert lay_out(heads, "permuted").strides == heads.strides


def test_the_gap_of_a_padded_row_is_no_number():
    laid = lay_out_guarded(numbered((4, 3)), "padded", guarded=False)
    rows = np.lib.stride_tricks.as_strided(laid.array, (4, 6), laid.array.strides)
    np.testing.assert_array_equal(rows[:, :3], numbered((4, 3)))
    assert np.isnan(rows[:, 3:]).all()


def test_alignment():
    for itemsize in (1, 2, 4, 8):
        values = np.zeros((3, 5), f"u{itemsize}")
        for guarded in (False, True):
            aligned = lay_out_guarded(values, "contiguous", guarded=guarded).array
            assert aligned.ctypes.data % ALIGNMENT == 0
            moved = lay_out_guarded(values, "offset", guarded=guarded).array
            assert moved.ctypes.data % 16 != 0
            assert moved.ctypes.data % itemsize == 0
            assert moved.flags.aligned


def test_expanded_memory_is_shared_and_read_only():
    values = values_for("expanded", (3, 4))
    array = lay_out(values, "expanded")
    assert array.strides[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        lay_out(numbered((1, 1)), "expanded")[0, 0] = 1


def test_expanded_refuses_values_that_differ():
    with pytest.raises(ValueError, match="differ along axis 0"):
        lay_out(numbered((3, 4)), "expanded")
    nan = np.full((3, 4), np.nan, np.float32)
    assert np.isnan(lay_out(nan, "expanded")).all(), "equal bits are equal values, NaN included"


def test_contiguous_values_are_not_copied():
    values = numbered((4, 5))
    assert lay_out(values, "contiguous") is values
    turned = values.T
    copied = lay_out(turned, "contiguous")
    assert copied.flags.c_contiguous
    np.testing.assert_array_equal(copied, turned)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e5m2"])
def test_gaps_and_guards_of_floats_read_as_nan(dtype: str):
    laid = lay_out_guarded(values_for("strided", (3, 4), dtype), "strided")
    everything = laid.buffer.view(numpy_dtype(dtype)).astype(np.float64)
    assert np.isfinite(everything).sum() == 12


def test_a_read_over_the_end_of_a_row_shows():
    laid = lay_out_guarded(numbered((3, 4)), "strided")
    longer = np.lib.stride_tricks.as_strided(laid.array, (3, 5), laid.array.strides)
    assert np.isnan(longer[:, 4]).all()


def test_the_gap_behind_the_last_row_is_there_without_guards_too():
    # 4 rows of pitch 9, the last element at 31: without the gap the buffer would end there.
    laid = lay_out_guarded(numbered((4, 3)), "strided", guarded=False)
    behind = laid.buffer.view(np.float32)[32:36]
    assert behind.size == 4
    assert np.isnan(behind).all()


def outside(laid) -> np.ndarray:
    """Marks the bytes of a buffer that belong to no element."""
    own = np.zeros(laid.buffer.shape, np.uint8)
    view = np.ndarray(
        laid.array.shape,
        f"u{laid.array.itemsize}",
        buffer=own,
        offset=laid.placement.offset,
        strides=laid.placement.strides,
    )
    view[...] = np.iinfo(view.dtype).max
    return np.flatnonzero(own == 0)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "float16"])
def test_any_single_byte_outside_the_elements_is_missed_by_no_check(dtype: str):
    for layout in LAYOUTS:
        laid = lay_out_guarded(values_for(layout, (3, 5), dtype), layout)
        places = outside(laid)
        element_bytes = laid.buffer.size - places.size
        distinct = math.prod(reduced_shape((3, 5))) if layout == "expanded" else 15
        assert element_bytes == distinct * laid.array.itemsize
        near = [p for p in places if abs(p - laid.placement.offset) < 100]
        for place_of_write in {places[0], places[-1], *near}:
            laid.buffer[place_of_write] ^= 1
            assert not laid.intact(), place_of_write
            laid.buffer[place_of_write] ^= 1
            assert laid.intact()


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "expanded"])
def test_a_write_to_the_elements_is_allowed(layout: str):
    laid = lay_out_guarded(numbered((3, 5)), layout)
    laid.array[...] = 7
    assert laid.intact()


@for_each("layout", LAYOUTS)
def test_guards_lie_on_both_sides_and_hold_a_row(layout: str):
    place_of_all = place(layout, (2, 3000), 4, guarded=True)
    extent = 4 + sum((n - 1) * s for n, s in zip((2, 3000), place_of_all.strides, strict=True))
    wanted = GUARD_BYTES + 3000 * 4
    assert place_of_all.offset >= wanted
    assert place_of_all.nbytes - place_of_all.offset - extent >= wanted
    assert place_of_all.nbytes % ALIGNMENT == 0


def test_without_guards_little_more_than_the_elements_is_taken():
    assert place("contiguous", (16, 16), 4).nbytes == 1024
    assert place("contiguous", (), 8).nbytes == ALIGNMENT
    assert place("contiguous", (0, 5), 8).nbytes == ALIGNMENT


def test_an_unknown_layout():
    with pytest.raises(ValueError, match="diagonal"):
        lay_out(numbered((2, 2)), "diagonal")
