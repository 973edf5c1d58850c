"""Random outputs: right ones fail no more often than the contract says, and wrong ones do fail."""

from __future__ import annotations

import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.numerics.contract import Statistics
from gpuemu_flow.numerics.contract_statistics import tested as judge_random

SHAPE = (25, 40)


def failures_of(kept: np.ndarray, x: np.ndarray, share: float, rate: float) -> tuple[str, ...]:
    """Judge a dropout that kept these elements, and return its failures."""
    told = Statistics("x", zeros=share, false_alarms=rate)
    return judge_random("y", np.where(kept, x / (1 - share), 0), x, told).failures


@pytest.mark.ci
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.95])
def test_right_dropouts_of_1000_elements_keep_the_rate(share: float) -> None:
    """Of 1,200 cases at a rate of 0.001, 1.2 may fail; 9 to 23 did, by the pairs of neighbours."""
    rng = np.random.default_rng(int(100 * share))
    wrong = 0
    for _ in range(1200):
        x = rng.normal(size=SHAPE)
        wrong += bool(failures_of(rng.random(SHAPE) >= share, x, share, 1e-3))
    assert wrong <= 2


@for_each("axis", [0, 1])
@for_each("share", [0.1, 0.25, 0.5, 0.9])
def test_neighbours_that_share_a_draw_are_found(share: float, axis: int) -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        x = rng.normal(size=(64, 64))
        half = rng.random((32, 64) if axis == 0 else (64, 32))
        (failure,) = failures_of(half.repeat(2, axis) >= share, x, share, 1e-6)
        assert f"axis {axis}" in failure


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_neighbours_of_opposite_draws_are_found(share: float) -> None:
    """An antithetic generator gives `u` and `1 - u` in turn."""
    rng = np.random.default_rng(6)
    for _ in range(20):
        x = rng.normal(size=(64, 64))
        draws = rng.random((64, 32))
        opposite = np.stack([draws, 1 - draws], axis=2).reshape(64, 64)
        (failure,) = failures_of(opposite >= share, x, share, 1e-6)
        assert "axis 1" in failure
