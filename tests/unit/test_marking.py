"""Arithmetic that marks what it rounded, and that divides by way of the reciprocal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from for_each import for_each
from numpy.typing import NDArray

from gpuemu_flow.numerics.envelope import Envelope
from gpuemu_flow.numerics.noise import STAND_INS, inverting, marking, stepping
from gpuemu_flow.numerics.perturb import Arrays

Array = NDArray[Any]
F = np.float32


def marked(values: Array) -> Array:
    return marking({"x": values}, STAND_INS[0])["x"]


@for_each(
    ("compute", "rounded"),
    [
        (lambda x: x * 2, [False, False, False]),
        (lambda x: x / 4, [False, False, False]),
        (lambda x: x / 3, [True, True, False]),
        (lambda x: x / x, [False, False, False]),
        (lambda x: np.maximum(x / 3, 1), [True, True, False]),
        (lambda x: np.where(x > 3, x, x / 3), [True, False, False]),
        (lambda x: (np.stack([x, x / 3]) + 0).max(0), [True, True, False]),
        (lambda x: x @ np.diag(x), [False, False, False]),
        (lambda x: np.dot(x, np.eye(3)), [True, True, True]),
    ],
)
def test_what_was_rounded_is_nan(compute: Any, rounded: list[bool]) -> None:
    found = np.asarray(compute(marked(np.array([1.0, 4.0, 3.0], F))))
    assert np.isnan(found).tolist() == rounded


def test_a_quotient_that_the_reciprocal_would_not_give_counts_as_rounded() -> None:
    x = np.array([3.0, 41.0], F)
    assert np.isnan(np.asarray(marked(x) / np.array([3.0, 41.0], F))).tolist() == [False, True]
    assert float(F(41) * (F(1) / F(41))) != 1.0


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", np.int64])
def test_nan_becomes_a_chosen_integer(dtype: Any) -> None:
    casts = [
        np.asarray((marking({"x": np.array([1.0, 6.0], F)}, each)["x"] / 3).astype(dtype))
        for each in STAND_INS
    ]
    assert [cast.tolist() for cast in casts] == [[85, 2], [86, 2]]
    assert casts[0].dtype == np.dtype(dtype)


def test_only_a_reciprocal_that_overflows_is_used() -> None:
    tiny = F(2.0**-140)
    x = inverting({"x": np.array([2.0**-141, 0.0, 7.0, -1.0], F)}, STAND_INS[0])["x"]
    found = np.asarray(x / np.array([tiny, tiny, 3.0, 0.0], F))
    np.testing.assert_array_equal(found, [np.inf, np.nan, F(7) / F(3), -np.inf])
    x /= tiny
    assert np.asarray(x)[0] == np.inf


def test_one_operation_is_moved_and_all_of_it_alike() -> None:
    x = np.array([1.0, 4.0, 21.0], F)
    plain = x / 3 * F(0.1)
    for turn, wanted in ((1, [1, 1, 0]), (2, [1, 1, 1]), (9, [0, 0, 0])):
        copies, met = stepping({"x": x}, turn, 2.0**-10)
        found = np.asarray(copies["x"] / 3 * F(0.1))
        assert np.rint((found / plain - 1) * 2.0**10).tolist() == wanted
        assert (len(met) < turn) == (turn == 9)


def rows(inputs: Arrays, *, shadow: bool = False) -> Arrays:
    x = inputs["x"]
    scale = np.abs(x).max(-1, keepdims=True) / x.dtype.type(127)
    scale = np.where(scale == 0, x.dtype.type(1), scale)
    return {"y": np.clip(np.rint(x / scale), -128, 127).astype(np.int8)}


def bytes_from_zero_points(inputs: Arrays, *, shadow: bool = False) -> Arrays:
    x = inputs["x"]
    low = np.minimum(x.min(-1, keepdims=True), 0)
    scale = (np.maximum(x.max(-1, keepdims=True), 0) - low) / x.dtype.type(255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return {"y": np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)}


def unjudged(reference: Any, x: Array, seed: int) -> list[list[bool]]:
    expected = reference({"x": x.astype(np.float64)})
    envelope = Envelope(
        {"x": x}, expected, reference, dtype="float32", seed=seed, exact_op=False, weak=False
    )
    everywhere = slice(0, x.size)
    for bound in (envelope.full("y"), envelope.thorough("y")):
        found = bound.no_verdict(everywhere)
        marks = np.zeros(x.size, bool) if found is None else found
    return np.asarray(marks.reshape(x.shape)).tolist()


def test_a_row_whose_scale_is_subnormal_is_not_judged() -> None:
    """By way of its reciprocal all is Inf or NaN there, and hardware may have no subnormals."""
    x = np.array([[5e-39, 1e-40, 0.0], [1.0, 0.25, 0.0], [0.0, 0.0, 0.0]], F)
    assert unjudged(rows, x, 1) == [[True, True, True], [False] * 3, [False] * 3]


def test_a_half_is_judged_where_exact_numbers_made_it() -> None:
    x = np.array([[127.0, 0.5, 1.5], [8.0, 4.0 / 127 * 1.5, 1.0]], F)
    assert unjudged(rows, x, 1)[0] == [False] * 3


@pytest.mark.parametrize("largest", [1, 2, 7, 16])
def test_what_a_rounded_scale_decides_has_no_verdict(largest: int) -> None:
    """From -n to n the zero point and the quotient are both halves, of one rounded scale.

    Moved inputs make one of them larger and the other smaller, so that their sum stays.
    """
    x = np.tile(np.array([-largest, largest, 0.0], F), (300, 1))
    found = unjudged(bytes_from_zero_points, x, 1)
    assert sum(row[1] for row in found) == 300


def fake_rows(inputs: Arrays, *, shadow: bool = False) -> Arrays:
    x = inputs["x"]
    scale = np.abs(x).max(-1, keepdims=True) / x.dtype.type(127)
    return {"y": np.clip(np.rint(x / scale), -128, 127) * scale}


@pytest.mark.parametrize("step", [0.25, 1.0, 4.0])
def test_a_half_is_judged_of_floats_too_where_exact_numbers_made_it(step: float) -> None:
    """Of fake quantisation: one step more than the reference has is an error there."""
    exact_row = np.array([127.0, 0.5, 1.5, -2.5, 64.5, 99.5, 3.25]) * step
    rounded_row = np.array([5.0, 0.3, 1.5, -2.5, 4.5, 0.5, 3.25])
    x = np.stack([exact_row, rounded_row]).astype(F)
    expected = fake_rows({"x": x.astype(np.float64)})
    envelope = Envelope(
        {"x": x}, expected, fake_rows, dtype="float32", seed=1, exact_op=False, weak=False
    )
    first = slice(0, exact_row.size)
    for bound in (envelope.full("y"), envelope.thorough("y")):
        found = bound.no_verdict(first)
        assert found is None or not found.any()
        allowed = bound.tolerance(expected["y"][0], first)
        assert (allowed < 0.01 * step).all()
