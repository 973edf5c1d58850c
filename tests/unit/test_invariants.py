"""Invariants of outputs: each one holds, fails at the right place, and leaves exempt elements."""

from __future__ import annotations

import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.model.types import INVARIANTS, Tolerance
from gpuemu_flow.numerics import checked_output
from gpuemu_flow.numerics.checked_output import (
    BrokenInvariant,
    check_invariant,
    check_shape_preserved,
)
from gpuemu_flow.numerics.dtypes import numpy_dtype

NAN, INF = float("nan"), float("inf")
TOLERANCE = Tolerance(1e-5, 1e-5)


def check(
    name: str,
    values: object,
    dtype: str = "float32",
    exempt: np.ndarray | None = None,
    tolerance: Tolerance = TOLERANCE,
) -> BrokenInvariant | None:
    array = np.asarray(values)
    if array.dtype != numpy_dtype(dtype):
        array = array.astype(numpy_dtype(dtype))
    return check_invariant(name, array, dtype, tolerance, exempt)


@for_each(
    ("name", "value", "holds"),
    [
        ("non_negative", 0.0, True),
        ("non_negative", -0.0, True),
        ("non_negative", -1e-3, False),
        ("non_negative", NAN, True),
        ("non_negative", -INF, False),
        ("finite", NAN, False),
        ("finite", INF, False),
        ("finite", 1e4, True),
        ("no_nan", NAN, False),
        ("no_nan", INF, True),
        ("no_inf", -INF, False),
        ("no_inf", NAN, True),
    ],
)
@for_each("size", [6, 300_000])
def test_elementwise_invariants(name: str, value: float, holds: bool, size: int) -> None:
    for dtype in ["float32", "float64", "float16", "bfloat16", "float8_e5m2"]:
        values = np.ones((2, size // 2), numpy_dtype(dtype))
        values[1, size // 2 - 1] = value
        for array in (values, np.asfortranarray(values)):
            violation = check(name, array, dtype)
            assert (violation is None) == holds
            if violation is not None:
                assert violation.index == (1, size // 2 - 1)
                assert repr(violation.actual) == repr(float(values[1, -1]))


def test_non_negative_of_integers_is_exact() -> None:
    assert check("non_negative", [5, -1], "int8") == BrokenInvariant(
        "the element at [1] is below zero", (1,), -1.0
    )
    assert check("non_negative", [2**63 - 1], "int64") is None
    assert check("non_negative", np.array([2**64 - 1], np.uint64), "uint64") is None
    for name in ("finite", "no_nan", "no_inf"):
        assert check(name, [True, False], "bool") is None
        assert check(name, [-5], "int32") is None


def test_normalized_sums_over_the_last_dim() -> None:
    rng = np.random.default_rng(0)
    rows = rng.random((3, 4, 100))
    rows /= rows.sum(-1, keepdims=True)
    assert check("normalized", rows) is None
    assert check("normalized", rows.swapaxes(0, 1)) is None
    rows[2, 1, 7] += 1e-3
    violation = check("normalized", rows)
    assert violation is not None
    assert violation.index == (2, 1)
    assert violation.actual == pytest.approx(1.001, rel=1e-5)


def test_normalized_allows_the_rounding_of_narrow_formats_and_long_rows() -> None:
    rows = np.full((2, 5000), 1 / 5000)
    assert check("normalized", rows, "float16", tolerance=Tolerance(0, 0)) is None
    assert check("normalized", rows * 1.5, "float32", tolerance=Tolerance(0, 0)) is not None
    assert check("normalized", 1.0) is None
    assert check("normalized", 0.9) is not None
    assert check("normalized", [[NAN, 1.0]]) is not None


def test_symmetric_compares_with_the_transpose() -> None:
    matrix = np.arange(9.0).reshape(3, 3)
    symmetric = matrix + matrix.T
    assert check("symmetric", symmetric) is None
    assert check("symmetric", np.stack([symmetric, matrix])) == BrokenInvariant(
        "the elements at [1, 0, 1] and mirrored are 1 and 3", (1, 0, 1), 1.0
    )
    symmetric[0, 2] += 1e-5
    assert check("symmetric", symmetric) is None
    symmetric[0, 1] = symmetric[1, 0] = NAN
    symmetric[2, 2] = INF
    assert check("symmetric", symmetric) is None
    symmetric[0, 1] = 0.0
    assert check("symmetric", symmetric) is not None


@pytest.mark.parametrize("shape", [(3,), (2, 3), ()])
def test_symmetric_demands_a_square(shape: tuple[int, ...]) -> None:
    violation = check("symmetric", np.zeros(shape))
    assert violation is not None
    assert violation.index is None


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_output, "CHUNK", 16)
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((2, 9, 9))
    matrix = matrix + matrix.swapaxes(1, 2)
    assert check("symmetric", matrix, "float64") is None
    matrix[1, 8, 3] += 1
    violation = check("symmetric", matrix, "float64")
    assert violation is not None
    assert violation.index == (1, 3, 8)
    rows = np.full((7, 5), 0.2)
    assert check("normalized", rows) is None
    rows[6, 0] = 0.3
    violation = check("normalized", rows)
    assert violation is not None
    assert violation.index == (6,)


def test_exempt_elements_are_not_judged() -> None:
    values = np.array([[0.5, NAN], [0.5, 0.5]])
    exempt = np.isnan(values)
    assert check("finite", values) is not None
    assert check("finite", values, exempt=exempt) is None
    assert check("normalized", values, exempt=exempt) is None
    assert check("symmetric", values, exempt=exempt) is None
    values[1, 0] = 0.7
    assert check("normalized", values, exempt=exempt) is not None
    values[1, 0] = INF
    violation = check("finite", values, exempt=exempt)
    assert violation is not None
    assert violation.index == (1, 0)


def test_every_name_is_known_and_others_are_not() -> None:
    for name in INVARIANTS:
        assert check(name, np.zeros((0, 3))) is None
    assert check("shape_preserved", [1.0]) is None
    with pytest.raises(ValueError, match="monotonic"):
        check("monotonic", [1.0])


def test_shape_preserved_names_both_shapes() -> None:
    assert check_shape_preserved((2, 3), "x", (2, 3)) is None
    violation = check_shape_preserved((2, 3), "x", (3, 2))
    assert violation is not None
    assert "[2, 3]" in violation.message
    assert "'x' [3, 2]" in violation.message
