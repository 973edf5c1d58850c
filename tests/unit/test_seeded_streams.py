"""Streams drawn from together give what each of them gives alone, and go on where it would."""

from __future__ import annotations

import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.numerics.rng import SeededRng, derive_seed
from gpuemu_flow.numerics.rng_arrays import SeededStreams

FEW, MANY = 2, 90  # looked up one by one, and stepped together
KINDS = ("u64", "f64", "f32", "uniform10_f64", "uniform10_f32", "normal_f32")


def seeds_of(number: int) -> list[int]:
    return [derive_seed(n, "many") for n in range(number)]


@for_each("number", [1, FEW, MANY])
@for_each("count", [0, 1, 2, 7, 64, 301])
def test_rows_are_those_of_each_stream_alone(count: int, number: int) -> None:
    for kind in KINDS:
        seeds = seeds_of(number)
        together, alone = SeededStreams(seeds), [SeededRng(seed) for seed in seeds]
        for _ in range(2):  # the second time, from where the first has left them
            found = getattr(together, kind)(count)
            wanted = np.stack([getattr(rng, kind)(count) for rng in alone])
            assert found.dtype == wanted.dtype
            assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("number", [1, FEW, MANY])
def test_choices_are_those_of_each_stream_alone(number: int) -> None:
    seeds = seeds_of(number)
    together, alone = SeededStreams(seeds), [SeededRng(seed) for seed in seeds]
    assert together.derive("a").seeds == [rng.derive("a").seed for rng in alone]
    for _ in range(2):
        assert together.words() == [rng.gen_u64() for rng in alone]
        assert together.gen_range(-3, 9).tolist() == [rng.gen_range(-3, 9) for rng in alone]
        assert together.choice("abcde") == [rng.choice("abcde") for rng in alone]
        found = together.ranges(30, -8, 1 << 40)
        assert found.tolist() == [rng.ranges(30, -8, 1 << 40).tolist() for rng in alone]
        for size in (1, 2, 9):
            order = together.shuffled(size)
            for rng, row in zip(alone, order.tolist(), strict=True):
                items = list(range(size))
                rng.shuffle(items)
                assert row == items


def test_some_of_the_streams_go_on_alone() -> None:
    seeds = seeds_of(5)
    together, alone = SeededStreams(seeds), [SeededRng(seed) for seed in seeds]
    chosen = np.array([4, 1])
    fresh = together.some(chosen)
    assert fresh.words() == [SeededRng(seeds[n]).gen_u64() for n in (4, 1)]
    together.u64(3)
    for rng in alone:
        rng.u64(3)
    assert together.some(chosen).words() == [alone[n].gen_u64() for n in (4, 1)]


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        SeededStreams([1]).ranges(1, 2, 2)
