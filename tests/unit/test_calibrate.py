"""Calibration: the formula, what it rests on, and gpuemu.toml edited in place."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tomli
from for_each import for_each

from gpuemu_flow.numerics.calibrate import (
    MARGIN,
    MeasuredErrors,
    calibrate,
    observe,
    round_up,
    to_toml,
    tolerances,
)


def observed(
    errors: list[float], exponent: int = 0, dtype: str = "float32"
) -> list[MeasuredErrors]:
    """Cases whose values lie at 2**exponent and err by so much there."""
    return [MeasuredErrors(dtype, e, ((exponent, e / 2.0**exponent),)) for e in errors]


def test_one_and_a_half_times_the_95th_percentile() -> None:
    errors = [i * 1e-4 for i in range(1, 101)]
    (found,) = calibrate(observed(errors))
    assert found.error == pytest.approx(MARGIN * 96e-4)
    assert found.rtol == pytest.approx(MARGIN * 96e-4)
    assert found.atol == pytest.approx(2.0**-126, rel=0.01)
    assert (found.cases, found.worst, found.above) == (100, pytest.approx(1e-2), 0)
    assert found.notes == ()


def test_errors_of_small_values_beside_large_ones_are_absolute() -> None:
    """A sum that cancels errs by its terms' rounding, however small it comes out."""
    cases = [MeasuredErrors("float32", 1e-6, ((0, 1e-6), (-10, 1e-6 * 2**10)))] * 30
    (found,) = calibrate(cases)
    assert found.rtol == pytest.approx(1.5e-6)
    assert 1.5e-6 <= found.atol <= 3.1e-6
    assert found.above == 0


def test_an_error_where_zero_is_expected_is_absolute() -> None:
    (found,) = calibrate([MeasuredErrors("float32", 1e-5, ((3, 0.0),), at_zero=1e-5)] * 30)
    assert (found.atol, found.rtol) == (pytest.approx(1.5e-5), pytest.approx(2.0**-22, rel=0.01))


def test_a_right_half_precision_op_with_large_values_keeps_small_ones_tight() -> None:
    """Rounded once, values up to 1000: an absolute tolerance for them would let all else pass."""
    values = np.linspace(0.001, 1000, 4001)
    seen = [o for _ in range(30) for o in observe({"y": values.astype("f2")}, {"y": values})]
    (found,) = calibrate(seen)
    assert found.worst > 0.2
    assert found.rtol == pytest.approx(2 * 2.0**-10, rel=0.01)
    assert found.atol < 1e-4
    assert found.above == 0


def test_one_outlier_in_a_hundred_does_not_widen_it_but_is_named() -> None:
    (found,) = calibrate(observed([1e-4] * 99 + [1.0]))
    assert found.rtol == pytest.approx(1.5e-4)
    assert found.above == 1
    assert "1 of 100 cases lie beyond it (worst 1)" in found.notes


@pytest.mark.parametrize(
    ("dtype", "eps"), [("float32", 2.0**-23), ("float16", 2.0**-10), ("bfloat16", 2.0**-7)]
)
def test_an_exact_implementation_gets_two_ulp(dtype: str, eps: float) -> None:
    (found,) = calibrate(observed([0.0] * 30, dtype=dtype))
    assert 2 * eps <= found.rtol < 2 * eps * 1.01
    assert 0 < found.atol < 1e-4


def test_few_cases_are_taken_at_their_worst_and_said_to_be_few() -> None:
    (found,) = calibrate(observed([1e-4, 5e-4, 2e-4]))
    assert found.rtol == pytest.approx(7.5e-4)
    assert "only 3 cases" in found.notes[0]


def test_each_dtype_for_itself() -> None:
    both = [*observed([1e-6] * 30), *observed([1e-2] * 30, dtype="float16")]
    found = tolerances(calibrate(both))
    assert {dtype: t.rtol for dtype, t in found.items()} == {"float32": 1.5e-6, "float16": 0.015}
    assert calibrate([]) == []


def test_observing_takes_the_largest_finite_error_of_all_outputs() -> None:
    actual = {
        "y": np.array([1.0, np.nan, np.inf, 4.5], np.float32),
        "z": np.array([10.25], np.float32),
        "h": np.array([2.0], np.float16),
        "n": np.array([7], np.int32),
    }
    expected = {
        "y": np.array([1.0, np.nan, 3.0, 4.0]),
        "z": np.array([10.0]),
        "h": np.array([2.0]),
        "n": np.array([9]),
    }
    found = {o.dtype: o for o in observe(actual, expected)}
    relative = ((3, 0.025), (2, 0.125))
    assert found["float32"] == MeasuredErrors("float32", 0.5, relative, mismatches=1)
    assert found["float16"] == MeasuredErrors("float16", 0.0, ((1, 0.0),))
    assert set(found) == {"float32", "float16"}
    assert "NaN or Inf on one side" in calibrate(found.values())[0].notes[1]


def test_an_overflow_that_any_op_shows_is_not_an_error() -> None:
    big = {"y": np.array([65504.0], np.float16)}
    assert observe(big, {"y": np.array([65510.0])})[0].max_abs == 0.0
    assert observe({"y": np.zeros(0, np.float32)}, {"y": np.zeros(0)}) == []


@for_each("value", [1.0, 1.001, 1.009999, 9.999e-7, 3.33333e10, 1e-300, 0.123456])
def test_rounding_up_to_three_digits(value: float) -> None:
    rounded = round_up(value)
    assert value * (1 - 1e-9) <= rounded <= value * 1.0101
    assert float(f"{rounded:.2e}") == rounded
    assert round_up(0.0) == 0.0
    assert round_up(math.inf) == math.inf


def test_the_suggestion_as_toml() -> None:
    found = calibrate([*observed([1e-6] * 30), *observed([1e-2] * 30, dtype="float16")])
    text = to_toml(found)
    assert tomli.loads("[[ops]]\n" + text)["ops"][0]["tolerances"] == {
        c.dtype: {"atol": c.atol, "rtol": c.rtol} for c in found
    }
    assert "# 30 cases, worst 1e-06" in text
