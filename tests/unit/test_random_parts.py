"""Random outputs: ops that are wrong in one part of an output, or that repeat their draws, fail."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.numerics.contract import Statistics
from gpuemu_flow.numerics.contract_statistics import StatisticsOutcome, repeated_shift
from gpuemu_flow.numerics.contract_statistics import tested as judge_random
from gpuemu_flow.numerics.random_parts import divisions_of

SHAPE = (96, 100)  # rows are no power of two, nor three times one
Draws = np.ndarray
Bug = Callable[[Draws, Draws, float], tuple[np.ndarray, np.ndarray]]


def judged(
    x: np.ndarray, kept: np.ndarray, scale: np.ndarray | float, share: float, rate: float = 1e-6
) -> StatisticsOutcome:
    told = Statistics("x", zeros=share, samples=1, false_alarms=rate)
    return judge_random("y", np.where(kept, x * np.float32(scale), 0).astype(x.dtype), x, told)


def part_kept(part: tuple[slice, ...] | slice, *, flat: bool = False) -> Bug:
    """Return a dropout that drops nothing in one part, and scales it there."""

    def bug(x: Draws, draws: Draws, share: float) -> tuple[np.ndarray, np.ndarray]:
        kept = draws >= share
        (kept.reshape(-1) if flat else kept)[part] = True
        return kept, np.full(x.shape, 1 / (1 - share))

    return bug


def part_unscaled(part: tuple[slice, ...]) -> Bug:
    def bug(x: Draws, draws: Draws, share: float) -> tuple[np.ndarray, np.ndarray]:
        scale = np.full(x.shape, 1 / (1 - share))
        scale[part] = 1.0
        return draws >= share, scale

    return bug


def other_rate(x: Draws, draws: Draws, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Draw with another rate in each half, so that the whole has the right share of zeros."""
    rates = np.full(x.shape, share - 0.08)
    rates[len(x) // 2 :] = share + 0.08
    return draws >= rates, 1 / (1 - rates)


def tile_unscaled(x: Draws, draws: Draws, share: float) -> tuple[np.ndarray, np.ndarray]:
    return part_unscaled((slice(32, 64), slice(32, 64)))(x, draws, share)


def by_sign(x: Draws, draws: Draws, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Drop positive elements more often than negative ones; the whole has the right share."""
    rates = np.where(x > 0, share + 0.08, share - 0.08)
    return draws >= rates, 1 / (1 - rates)


def same_for(length: int) -> Bug:
    """Return a dropout that draws the same mask for each block of so many elements."""

    def bug(x: Draws, draws: Draws, share: float) -> tuple[np.ndarray, np.ndarray]:
        mask = np.resize(draws.reshape(-1)[:length] >= share, x.shape)
        return mask, np.full(x.shape, 1 / mask.mean())

    return bug


def shifted_rows(x: Draws, draws: Draws, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Draw from counters `row + column`: each row is the one above, moved by one."""
    line = np.random.default_rng(int(draws[0, 0] * 2**32)).random(sum(x.shape))
    rows, columns = np.indices(x.shape)
    return line[rows + columns] >= share, np.full(x.shape, 1 / (1 - share))


def seeds_shared_by_two(x: Draws, draws: Draws, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Draw with the seed `block // 2`, in blocks of 300 elements."""
    blocks = draws.reshape(-1, 300)
    blocks[1::2] = blocks[::2]
    return draws >= share, np.full(x.shape, 1 / (1 - share))


BUGS: dict[str, Bug] = {
    "the last block is not dropped": part_kept(slice(-256, None), flat=True),
    "the last row is not dropped": part_kept((slice(-1, None), slice(None))),
    "the first column is not dropped": part_kept((slice(None), slice(0, 1))),
    "a lane is not dropped": part_kept((slice(None), slice(31, None, 32))),
    "an element in 64 in memory is not dropped": part_kept(slice(7, None, 64), flat=True),
    "a tail of columns is not scaled": part_unscaled((slice(None), slice(96, None))),
    "a tile is not scaled": tile_unscaled,
    "halves have other rates": other_rate,
    "signs have other rates": by_sign,
    "blocks of 1000 repeat": same_for(1000),
    "blocks of 7 rows repeat": same_for(700),
    "rows are shifted copies": shifted_rows,
    "two blocks share a seed": seeds_shared_by_two,
}


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_dropouts_that_are_wrong_in_a_part_fail(share: float) -> None:
    for name in sorted(BUGS):
        rng = np.random.default_rng(11)
        for _ in range(2):
            x = rng.normal(size=SHAPE).astype(np.float32)
            kept, scale = BUGS[name](x, rng.random(SHAPE), share)
            assert judged(x, kept, scale, share).failures


def test_a_failure_names_the_part() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=SHAPE).astype(np.float32)
    kept = rng.random(SHAPE) >= 0.25
    kept[:, 40] = True
    (failure,) = judged(x, kept, 4 / 3, 0.25).failures
    assert failure.startswith("0 of 96 elements of 'y' at index 40 of axis 1 are 0, a share of 0")


def test_a_mask_that_is_symmetric_fails() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(64, 64)).astype(np.float32)
    draws = np.triu(rng.random((64, 64)))
    (failure,) = judged(x, np.maximum(draws, draws.T) >= 0.25, 4 / 3, 0.25).failures
    assert "whose last two indices are exchanged" in failure


@pytest.mark.parametrize(
    ("share", "dtype"), [(0.05, "float16"), (0.25, "float32"), (0.9, "float32")]
)
def test_right_dropouts_of_few_elements_pass(share: float, dtype: str) -> None:
    """Of 32 × 30 draws at a rate of 0.001, 1 may fail."""
    for shape in [(16,), (4, 8), (25, 40), (2, 3, 7, 31)]:
        rng = np.random.default_rng(int(1000 * share) + len(shape))
        wrong = 0
        for _ in range(30):
            x = rng.normal(size=shape).astype(dtype)
            wrong += bool(
                judged(x, rng.random(shape) >= share, 1 / (1 - share), share, 1e-3).failures
            )
        assert wrong == 0


NOISE: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "exponential": lambda rng, n: rng.exponential(size=n) - 1,
    "gamma": lambda rng, n: (rng.gamma(0.5, size=n) - 0.5) / math.sqrt(0.5),
    "lognormal": lambda rng, n: (
        (np.exp(rng.normal(size=n) / 2) - math.exp(1 / 8))
        / math.sqrt((math.exp(1 / 4) - 1) * math.exp(1 / 4))
    ),
}


@pytest.mark.parametrize("name", NOISE)
def test_the_std_of_skewed_noise_keeps_the_rate(name: str) -> None:
    """Of 150 at a rate of 0.02, 3 may fail by all tests together."""
    rng = np.random.default_rng(8)
    told = Statistics(2.0, std=1.0, false_alarms=0.02)
    drawn = (NOISE[name](rng, 1000) + 2 for _ in range(150))
    wrong = [judge_random("y", one, np.full(1000, 2.0), told).failures for one in drawn]
    assert sum(map(bool, wrong)) <= 1


@pytest.mark.parametrize("std", [0.75, 1.25])
def test_another_std_fails(std: float) -> None:
    rng = np.random.default_rng(9)
    told = Statistics(2.0, std=1.0)
    for _ in range(20):
        drawn = 2 + std * rng.normal(size=2000)
        failures = judge_random("y", drawn, np.full(2000, 2.0), told).failures
        assert any("standard deviation" in failure for failure in failures)


def test_another_std_in_one_row_fails() -> None:
    rng = np.random.default_rng(10)
    told = Statistics(2.0, std=1.0)
    drawn = rng.normal(size=(40, 200))
    drawn[17] *= 2.5
    (failure,) = judge_random("y", 2 + drawn, np.full((40, 200), 2.0), told).failures
    assert "at index 17 of axis 0 is" in failure


def channels(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Drop whole channels, a quarter of them."""
    kept = rng.random((*x.shape[:2], 1, 1)) >= 0.25
    return np.where(kept, x / np.float32(0.75), 0).astype(x.dtype)


def judged_channels(
    x: np.ndarray, y: np.ndarray, reference: np.ndarray | None
) -> StatisticsOutcome:
    told = Statistics("x", zeros=0.25, false_alarms=1e-3)
    return judge_random("y", y, x, told, reference)


def test_channels_may_be_dropped_if_the_reference_drops_channels() -> None:
    rng = np.random.default_rng(12)
    for dtype in ("float32", "float16"):
        for _ in range(8):
            x = rng.normal(size=(40, 30, 2, 3)).astype(dtype)
            result = judged_channels(x, channels(rng, x), channels(rng, x))
            assert (result.count, result.failures) == (1200, ())
        assert judged_channels(x, channels(rng, x), None).failures
        assert judged_channels(x, channels(rng, x), x).failures


def test_elements_may_not_be_dropped_if_the_reference_drops_channels() -> None:
    rng = np.random.default_rng(13)
    x = rng.normal(size=(40, 30, 2, 3)).astype(np.float32)
    y = np.where(rng.random(x.shape) >= 0.25, x / np.float32(0.75), 0).astype(np.float32)
    (failure,) = judged_channels(x, y, channels(rng, x)).failures
    assert "along axes 2, 3 do not share a draw" in failure
    unscaled = channels(rng, x)
    unscaled[..., 1:] *= np.float32(0.75)
    assert judged_channels(x, unscaled, channels(rng, x)).failures
    same = np.broadcast_to(channels(rng, np.ones_like(x))[:1], x.shape) * x
    (failure,) = judged_channels(x, same, channels(rng, x)).failures
    assert "axis 0" in failure


def test_few_channels_are_inconclusive() -> None:
    rng = np.random.default_rng(14)
    x = rng.normal(size=(8, 10, 8, 8)).astype(np.float32)
    result = judged_channels(x, channels(rng, x), channels(rng, x))
    assert not result.count
    assert "need 1000 groups of elements along axes 2, 3" in result.note


@for_each("shape", [(), (1,), (7,), (33,), (8, 1, 5), (70, 90), (3, 50, 129)])
def test_each_division_holds_each_element_once(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).normal(size=shape)
    for division in divisions_of(shape, values):
        small = division.sums(values)
        assert small.sum() == pytest.approx(values.sum())
        for parts in division.parts:
            sums = parts.sums(small)
            assert sums.sum() == pytest.approx(values.sum())
            assert len({parts.name(n) for n in range(len(sums))}) == len(sums)


def test_the_name_of_a_part_says_which_elements_it_holds() -> None:
    values = np.zeros((40, 64))
    values[19, 37] = 1.0
    names = {
        parts.name(int(parts.sums(division.sums(values)).argmax()))
        for division in divisions_of(values.shape, None)
        for parts in division.parts
    }
    assert {
        "at index 19 of axis 0",
        "at indices 16 to 23 of axis 0",
        "at indices 32 to 39 of axis 1",
        "at indices of axis 1 that are 5 modulo 32",
        "in the tile of 16 rows and columns at [16, 32]",
        "at indices 1248 to 1279 in memory",
        "at indices in memory that are 101 modulo 128",
    } <= names


def test_a_shift_is_found_among_terms_of_very_different_sizes() -> None:
    rng = np.random.default_rng(4)
    terms = np.resize(rng.normal(size=130), 1300)
    assert repeated_shift(terms, 0.0, 1e-6) in range(130, 651, 130)
    terms = rng.normal(size=1300)
    terms[5] = 1e9
    assert repeated_shift(terms / 1e9, 0.0, 1e-3) is None
