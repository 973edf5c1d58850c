"""Ulp distances and spacings: exhaustive for the small formats, edge values for the large ones."""

from __future__ import annotations

import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.numerics.dtypes import (
    FLOAT_LIMITS,
    NON_FINITE_DISTANCE,
    max_spacings_finite,
    max_steps_finite,
    numpy_dtype,
    ordered_keys,
    spacing,
    to_float64,
    ulp_distance,
)

SMALL_FORMATS = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


def all_finite(name: str) -> np.ndarray:
    dtype = numpy_dtype(name)
    words = np.arange(1 << (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}")
    values = words.view(dtype)
    return values[np.isfinite(to_float64(values))]


@pytest.mark.parametrize("name", SMALL_FORMATS)
def test_keys_of_all_finite_values_are_consecutive_in_value_order(name: str) -> None:
    values = all_finite(name)
    keys = np.sort(ordered_keys(values))
    assert np.array_equal(np.diff(keys), np.ones(keys.size - 1))
    by_key = values[np.argsort(ordered_keys(values))]
    assert np.all(np.diff(to_float64(by_key)) >= 0)


@pytest.mark.parametrize("name", SMALL_FORMATS)
def test_spacing_is_the_distance_to_the_next_larger_magnitude(name: str) -> None:
    positive = to_float64(all_finite(name))
    positive = np.unique(positive[positive >= 0])
    limits = FLOAT_LIMITS[name]
    assert np.array_equal(spacing(positive[:-1], limits), np.diff(positive))
    assert np.array_equal(spacing(-positive[:-1], limits), np.diff(positive))


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_spacing_agrees_with_numpy_over_the_whole_range(name: str) -> None:
    dtype = numpy_dtype(name).type
    info = np.finfo(dtype)
    exponents = np.arange(info.minexp - info.nmant, info.maxexp)
    values = np.concatenate([[0.0], np.ldexp(1.0, exponents), np.ldexp(1.75, exponents)])
    values = values.astype(dtype)
    below_top = values[values < info.max / 2]
    expected = np.spacing(below_top).astype(np.float64)
    assert np.array_equal(spacing(below_top.astype(np.float64), FLOAT_LIMITS[name]), expected)


def test_spacing_of_values_beyond_the_format_is_that_of_its_largest() -> None:
    limits = FLOAT_LIMITS["float16"]
    values = np.array([65504.0, 1e30, np.inf, -np.inf])
    assert spacing(values, limits).tolist() == [32.0] * 4


@for_each(
    ("actual", "expected", "distance"),
    [
        (1.0, 1.0, 0),
        (1.0, np.nextafter(np.float32(1), np.float32(2)), 1),
        (1.0, np.nextafter(np.float32(1), np.float32(0)), 1),
        (0.0, -0.0, 1),
        (np.float32(1e-45), -0.0, 2),
        (np.float32(1e-45), np.float32(-1e-45), 3),
        (np.nan, np.nan, NON_FINITE_DISTANCE),
        (np.inf, np.inf, NON_FINITE_DISTANCE),
        (1.0, -np.inf, NON_FINITE_DISTANCE),
        (np.finfo(np.float32).max, np.finfo(np.float32).min, 2 * 0x7F7FFFFF + 1),
    ],
)
def test_float32_distances(actual: float, expected: float, distance: int) -> None:
    found = ulp_distance(np.array([actual], np.float32), np.array([expected], np.float32))
    assert int(found[0]) == distance


def test_float64_distance_uses_all_64_bits() -> None:
    top = np.array([np.finfo(np.float64).max])
    assert int(ulp_distance(top, -top)[0]) == 2 * 0x7FEFFFFFFFFFFFFF + 1


@pytest.mark.parametrize("sign", ["same", "mixed"])
def test_fast_maximum_equals_the_elementwise_one(sign: str) -> None:
    for name in [*SMALL_FORMATS, "float32", "float64"]:
        rng = np.random.default_rng(7)
        dtype = numpy_dtype(name)
        for _ in range(40):
            base = rng.standard_normal(33) * 10.0 ** rng.integers(-3, 2)
            moved = base * (1 + rng.standard_normal(33) * 0.1)
            if sign == "mixed":
                moved[rng.integers(33)] *= -1
                base[rng.integers(33)] = -0.0
                moved[rng.integers(33)] = 0.0
            with np.errstate(all="ignore"):
                actual, expected = moved.astype(dtype), base.astype(dtype)
            scratch = np.empty(64)
            largest = max_steps_finite(actual, expected, scratch)
            assert largest == int(ulp_distance(actual, expected).max())


def test_fast_maximum_of_spacings_equals_the_elementwise_one() -> None:
    rng = np.random.default_rng(8)
    for name, limits in FLOAT_LIMITS.items():
        expected = rng.standard_normal(99) * 10.0 ** rng.integers(-9, 4, 99)
        expected[:3] = [0.0, -0.0, limits.max]
        error = np.abs(rng.standard_normal(99))
        with np.errstate(over="ignore"):
            wanted = float((error / spacing(expected, limits)).max())
            found = max_spacings_finite(error, expected, limits, np.empty(128))
        assert found == pytest.approx(wanted, rel=1e-15), name
