"""Memory that tensors lie in: shared files, spans, watched buffers, equal calls; frames."""

from __future__ import annotations

import math
import os
import socket
import sys
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from for_each import for_each
from msgspec.structs import replace

from gpuemu_flow.cases.generate import materialise, materialise_guarded
from gpuemu_flow.model.types import DTYPES, LAYOUTS, Case, FailureKind, InputSpec
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.workers import channel
from gpuemu_flow.workers.api import Slot, end_of
from gpuemu_flow.workers.arena import (
    Arena,
    InputBuffers,
    byte_span,
    changed_input,
    same_bytes,
    whole_memory,
)
from gpuemu_flow.workers.checked import FIRST_FILL, SECOND_FILL, compare_calls


def make_case(layout: str, dtype: str, shape: tuple[int, ...] = (5, 7)) -> Case:
    spec = InputSpec("x", shape, dtype, layout, "normal", 0)
    return Case(0, 1, dtype, layout, "normal", (spec,))


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(channel.create("test", fixed=True))
    yield made
    made.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="seals are Linux's")
def test_a_fixed_file_grows_and_never_shrinks() -> None:
    fd = channel.create("test", fixed=True)
    os.ftruncate(fd, 100)
    os.ftruncate(fd, 200)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 100)
    os.close(fd)


def test_the_tail_of_a_file_is_text() -> None:
    fd = channel.append_only(channel.create("test"))
    os.write(fd, b"x" * 5000 + b"\0\xffend\n")
    assert channel.tail(fd).endswith("x\ufffdend")
    assert len(channel.tail(fd)) <= channel.TAIL
    os.close(fd)
    assert channel.tail(fd) == ""


def test_a_status_page_that_says_nothing() -> None:
    fd = channel.create("test")
    assert channel.read_status(fd) == (channel.PREPARING, 0.0, 0)
    channel.write_status(fd, channel.CALLING, 3)
    phase, since, place = channel.read_status(fd)
    assert (phase, place) == (channel.CALLING, 3)
    assert math.isfinite(since)
    os.close(fd)


@for_each("layout", LAYOUTS)
@for_each("dtype", DTYPES)
def test_an_arena_keeps_bits_layout_and_alignment(arena: Arena, layout: str, dtype: str) -> None:
    arrays = {
        str(shape): materialise(make_case(layout, dtype, shape))["x"]
        for shape in ((), (0, 3), (1,), (5, 7), (2, 3, 4))
    }
    laid = arena.views(arena.write(arrays, keep_layout=True))
    plain = arena.read(arena.write(arrays))
    for name, array in arrays.items():
        assert plain[name].tobytes() == array.tobytes()
        assert plain[name].flags.c_contiguous
        assert laid[name].strides == array.strides
        if array.size:
            assert (laid[name].ctypes.data - array.ctypes.data) % 64 == 0


def test_an_arena_keeps_what_lies_before_the_start(arena: Arena) -> None:
    first = arena.write({"a": np.arange(10)})
    second = arena.write({"b": np.zeros(100)}, start=end_of(first))
    assert arena.read(first)["a"].tolist() == list(range(10))
    assert arena.read(second)["b"].tolist() == [0] * 100


@pytest.mark.parametrize(
    "slot",
    [
        Slot(0, (1 << 40,), (4,), "float32"),
        Slot(1 << 40, (1,), (4,), "float32"),
        Slot(0, (2,), (-4,), "float32"),
        Slot(-4, (1,), (4,), "float32"),
    ],
)
def test_places_outside_an_arena_are_refused(arena: Arena, slot: Slot) -> None:
    arena.write({"a": np.arange(10)})
    with pytest.raises(ValueError, match="arena"):
        arena.views({"x": slot})
    if slot.strides[0] > 0:
        with pytest.raises(ValueError, match="arena"):
            arena.read({"x": slot})


@for_each(
    "data", [None, [], [0, [1], [4]], [0, [1], [4], "object"], [0, [1, 1], [4], "int8"],
             ["a", [1], [4], "int8"], [0, [-1], [4], "int8"], [0, [1] * 99, [1] * 99, "int8"]],
)  # fmt: skip
def test_what_is_no_place(data: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        msgspec.convert(data, Slot)


def test_the_span_of_views() -> None:
    base = np.arange(60, dtype=np.int16).reshape(6, 10)
    start = base.ctypes.data
    assert byte_span(base) == (start, start + 120)
    assert byte_span(base[::-1, ::-1]) == (start, start + 120)
    assert byte_span(base[1:3, 2:5]) == (start + 24, start + 50)
    assert byte_span(np.broadcast_to(base[:1], (9, 10))) == (start, start + 20)
    low, high = byte_span(base[:0])
    assert low == high


def test_the_whole_memory_of_views() -> None:
    base = np.arange(60, dtype=np.int16).reshape(6, 10)
    for view in (base, base.T, base[2:, ::2], base.reshape(-1)[5:]):
        memory = whole_memory(view)
        assert memory.nbytes == 120
        assert np.shares_memory(memory, base)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
def test_each_single_changed_byte_is_found(dtype: str) -> None:
    """Every byte of the buffer in turn: of an element, of a gap or of a guard zone."""
    for layout in [name for name in LAYOUTS if name != "expanded"]:
        laid = materialise_guarded(make_case(layout, dtype, (2, 3)))["x"]
        buffers = InputBuffers({"x": laid.array})
        buffers.remember()
        assert buffers.violations(()) == []
        memory = whole_memory(laid.array)
        owned = np.zeros(memory.size, bool)
        itemsize = numpy_dtype(dtype).itemsize
        offset = laid.array.ctypes.data - memory.ctypes.data
        for index in np.ndindex(2, 3):
            place = offset + sum(i * s for i, s in zip(index, laid.array.strides, strict=True))
            owned[place : place + itemsize] = True
        for position in range(0, memory.size, 1 if layout == "strided" else 7):
            memory[position] ^= 1
            (failure,) = buffers.violations(())
            assert failure.kind is (
                FailureKind.INPUT_MODIFIED if owned[position] else FailureKind.OUT_OF_BOUNDS
            )
            memory[position] ^= 1
        assert buffers.violations(()) == []


@pytest.mark.parametrize("guards", [False, True])
def test_other_values_go_into_the_same_memory(guards: bool) -> None:
    """In as many buffers as it takes to meet every alignment of the allocation behind them."""
    for layout in LAYOUTS:
        case = make_case(layout, "float32")
        for seed in range(20):
            make = materialise_guarded if guards else materialise
            first, second = make(case), make(replace(case, seed=seed + 100))
            old = first["x"].array if guards else first["x"]
            new = second["x"].array if guards else second["x"]
            buffers = InputBuffers({"x": old})
            address = buffers.arrays["x"].ctypes.data
            assert buffers.overwrite({"x": new})
            assert buffers.arrays["x"].ctypes.data == address
            assert buffers.arrays["x"].tobytes() == new.tobytes()
            if guards:
                assert first["x"].intact()


def test_other_forms_do_not_fit() -> None:
    buffers = InputBuffers({"x": np.zeros((2, 3), np.float32)})
    assert not buffers.overwrite({"x": np.ones((4, 5), np.float32)})
    assert not buffers.overwrite({"y": np.ones((2, 3), np.float32)})
    assert not buffers.arrays["x"].any()


@pytest.mark.parametrize("start", [0, 1])
def test_each_byte_counts(start: int) -> None:
    for size in range(20):
        first = np.arange(start + size, dtype=np.uint8)[start:]
        second = first.copy()
        assert same_bytes(first, second)
        assert not same_bytes(first, np.append(second, np.uint8(0)))
        for place in range(size):
            second[place] ^= 1
            assert not same_bytes(first, second)
            second[place] ^= 1


def test_numbers_are_compared_by_their_bytes() -> None:
    values = np.array([[1.0, np.nan], [-0.0, np.inf]], np.float32)
    assert same_bytes(values, values.copy())
    assert not same_bytes(values, values + 0.0)


@for_each("layout", LAYOUTS)
def test_every_changed_element_is_seen(layout: str) -> None:
    before = materialise(make_case(layout, "float32"))["x"]
    after = before.copy(order="K")
    assert changed_input("x", before, after) == []
    for index in np.ndindex(after.shape):
        kept = after[index]
        after[index] = np.nextafter(kept, np.float32(np.inf))
        (failure,) = changed_input("x", before, after)
        assert failure.index == index
        after[index] = kept


def test_equal_calls() -> None:
    a = np.array([1.0, np.nan, -0.0], np.float32)
    assert compare_calls({"y": a}, {"y": a.copy()}, deterministic=True) == []
    b = np.array([1.0, np.nan, 0.0], np.float32)
    (failure,) = compare_calls({"y": a}, {"y": b}, deterministic=True)
    assert (failure.kind, failure.index) == (FailureKind.NON_DETERMINISTIC, (2,))
    assert compare_calls({"y": a}, {"y": b}, deterministic=False) == []
    for other in ({"y": a[:2]}, {"y": a.astype(np.float64)}, {}):
        (failure,) = compare_calls({"y": a}, other, deterministic=False)
        assert failure.kind is FailureKind.NON_DETERMINISTIC


def test_only_the_two_fills_in_the_same_place_mean_unwritten() -> None:
    first = np.zeros((2, 2), np.uint32)
    second = first.copy()
    first[1, 0] = int.from_bytes(bytes([FIRST_FILL] * 4), "little")
    second[1, 0] = int.from_bytes(bytes([SECOND_FILL] * 4), "little")
    for deterministic in (True, False):
        (failure,) = compare_calls({"y": first}, {"y": second}, deterministic=deterministic)
        assert (failure.kind, failure.index) == (FailureKind.UNWRITTEN, (1, 0))
    (failure,) = compare_calls({"y": second}, {"y": first}, deterministic=True)
    assert failure.kind is FailureKind.NON_DETERMINISTIC


def test_no_outputs_and_empty_ones() -> None:
    empty = np.zeros((0, 3), np.float16)
    assert compare_calls({}, {}, deterministic=True) == []
    assert compare_calls({"y": empty}, {"y": empty}, deterministic=True) == []


def test_a_message_that_comes_in_pieces_is_read_when_it_is_whole() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = channel.FrameReader(ours, wait=False)
        for piece in np.frombuffer(channel.pack({"serial": 1}), "S1"):
            assert reader.read() is None
            theirs.sendall(piece.ljust(1, b"\0"))
        assert reader.read() == {"serial": 1}
