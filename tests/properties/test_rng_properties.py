"""Any way of drawing from a stream gives the same stream."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.rng_arrays import LOOKUP_LIMIT, MAX_LANES, PREFIX, SCALAR_LIMIT, STRIDE

seeds = st.integers(min_value=-(1 << 70), max_value=1 << 70)
BOUNDARIES = (
    0, SCALAR_LIMIT, PREFIX, 2 * PREFIX, LOOKUP_LIMIT, 64 * STRIDE, 65 * STRIDE,
    MAX_LANES * STRIDE, 2 * MAX_LANES * STRIDE,
)  # fmt: skip
counts = st.one_of(
    st.integers(0, 200),
    st.integers(0, 12_000),
    st.tuples(st.sampled_from(BOUNDARIES), st.integers(-3, 3)).map(lambda p: max(0, sum(p))),
)


@settings(max_examples=60, deadline=None)
@given(seeds, st.lists(counts, min_size=1, max_size=4))
def test_split_draws_equal_one_draw(seed: int, pieces: list[int]) -> None:
    split, whole = SeededRng(seed), SeededRng(seed)
    drawn = np.concatenate([split.u64(piece) for piece in pieces])
    assert np.array_equal(drawn, whole.u64(sum(pieces)))
    assert split.state == whole.state


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(0, 7000), st.sampled_from(["u64", "f64", "f32"]))
def test_arrays_equal_single_draws(seed: int, count: int, kind: str) -> None:
    at_once, one_by_one = SeededRng(seed), SeededRng(seed)
    draw = getattr(one_by_one, f"gen_{kind}")
    assert getattr(at_once, kind)(count).tolist() == [draw() for _ in range(count)]
    assert at_once.state == one_by_one.state


@settings(max_examples=40, deadline=None)
@given(seeds, counts, counts)
def test_kinds_may_be_mixed(seed: int, first: int, second: int) -> None:
    words = SeededRng(seed).u64(first + second)
    rng = SeededRng(seed)
    singles = rng.uniform10_f32(first)
    rest = rng.f64(second)
    doubles = (2.0 * ((words[:first] >> np.uint64(11)) * 2.0**-53) - 1.0) * 10.0
    assert np.array_equal(singles, doubles.astype(np.float32))
    assert np.array_equal(rest, (words[first:] >> np.uint64(11)) * 2.0**-53)


@settings(max_examples=40, deadline=None)
@given(
    seeds,
    st.integers(1, 3000),
    st.integers(-(1 << 63), (1 << 63) - 1).flatmap(
        lambda low: st.tuples(st.just(low), st.integers(low + 1, 1 << 63))
    ),
)
def test_ranges_equal_single_draws(seed: int, count: int, bounds: tuple[int, int]) -> None:
    rng = SeededRng(seed)
    expected = [rng.gen_range(*bounds) for _ in range(min(count, 50))]
    drawn = SeededRng(seed).ranges(count, *bounds)
    assert drawn[:50].tolist() == expected
    assert bounds[0] <= drawn.min() <= drawn.max() < bounds[1]


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(0, 20_000))
def test_normals_equal_the_c_library(seed: int, count: int) -> None:
    exact = SeededRng(seed).normal_f64(count).astype(np.float32)
    assert SeededRng(seed).normal_f32(count).tobytes() == exact.tobytes()


@settings(max_examples=50, deadline=None)
@given(seeds, st.lists(st.integers(), max_size=40))
def test_shuffle_permutes(seed: int, items: list[int]) -> None:
    shuffled = list(items)
    SeededRng(seed).shuffle(shuffled)
    assert sorted(shuffled) == sorted(items)
