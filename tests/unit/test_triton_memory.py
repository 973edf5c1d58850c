"""Test which accesses of a kernel are allowed, against a check of each byte."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpuemu_flow.model.types import FailureKind
from gpuemu_flow.workers.triton_memory import READ, WRITE, Memory, Region

BASE = 1 << 40


def memory_of(*spans: tuple[int, int]) -> Memory:
    memory = Memory()
    regions = [Region(f"t{n}", BASE + a, BASE + b) for n, (a, b) in enumerate(spans)]
    memory.begin("kernel", __file__, regions)
    return memory


def pointers(*offsets: int) -> NDArray[np.uint64]:
    return np.array([BASE + o for o in offsets], np.uint64)


def test_all_is_well() -> None:
    memory = memory_of((0, 16), (1000, 1064))
    mask = np.ones(4, bool)
    assert memory.allowed(pointers(0, 4, 8, 12), mask, 4, READ) is mask
    assert memory.allowed(pointers(0, 1000, 12, 1060), mask, 4, READ) is mask
    assert memory.failures() == []


def test_masked_accesses_do_not_count() -> None:
    memory = memory_of((0, 16))
    mask = np.array([True, True, False])
    assert memory.allowed(pointers(0, 12, 16), mask, 4, READ) is mask
    nothing = np.zeros(1, bool)
    assert memory.allowed(pointers(-(1 << 39)), nothing, 4, WRITE) is nothing
    scalar = np.array(False)
    assert memory.allowed(pointers(99, 98), scalar, 4, WRITE) is scalar


def test_what_is_told() -> None:
    memory = memory_of((0, 16), (1000, 1008))
    kept = memory.allowed(pointers(12, 16, 20, 1000), np.ones(4, bool), 4, WRITE)
    assert kept.tolist() == [True, False, False, True]
    memory.allowed(pointers(998), np.ones(1, bool), 4, READ)
    memory.allowed(pointers(14), np.ones(1, bool), 4, READ)
    written, before, over = memory.failures()
    assert written.kind is FailureKind.OUT_OF_BOUNDS
    assert "writes element 4 of 't0', whose memory has 4; 2 such accesses" in written.message
    assert before.kind is FailureKind.OUT_OF_BOUNDS_READ and before.output == "t1"
    assert "reads element -1 of 't1'" in before.message
    assert "2 bytes over the end of 't0'" in over.message
    memory.forget()
    assert memory.failures() == []


def test_a_launch_without_tensors() -> None:
    memory = memory_of()
    assert not memory.allowed(pointers(0), np.ones(1, bool), 1, READ).any()
    assert "the launch has no tensor" in memory.failures()[0].message


def test_shared_tensors_stay_reachable() -> None:
    memory = memory_of()
    memory.shared.append(Region("a tensor", BASE, BASE + 8))
    memory.begin("kernel", __file__, [])
    assert memory.allowed(pointers(0, 4), np.ones(2, bool), 4, READ).all()


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=4)


@given(spans, st.lists(st.integers(-8, 200), min_size=1, max_size=12), st.data())
def test_against_each_byte(
    gaps: list[tuple[int, int]], offsets: list[int], data: st.DataObject
) -> None:
    at, regions = 0, []
    for gap, size in gaps:
        regions.append((at + gap + 1, at + gap + 1 + size))
        at = regions[-1][1]
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(offsets),
                                       max_size=len(offsets))))  # fmt: skip
    itemsize = data.draw(st.sampled_from([1, 2, 4, 8]))
    expected = [
        bool(m) and any(a <= o and o + itemsize <= b for a, b in regions)
        for o, m in zip(offsets, mask, strict=True)
    ]
    kept = memory_of(*regions).allowed(pointers(*offsets), mask, itemsize, READ)
    assert (kept & mask).tolist() == expected
