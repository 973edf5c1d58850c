"""Minimisation of planted bugs: the smallest case, proven to be so by a search of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from shrinking import MATMUL, PAIR, ROWS, Arrays, assert_one_minimal, normal, shrink, x_of

from gpuemu_flow.cases.minimize import (
    minimise,
)
from gpuemu_flow.cases.op_schema import Dim, OpSchema, TensorDef


def masked_softmax(x: np.ndarray) -> np.ndarray:
    """In tiles of eight, the tail filled with 0 where -inf belongs."""
    width = -(-x.shape[1] // 8) * 8
    padded = np.zeros((x.shape[0], width))
    padded[:, : x.shape[1]] = x
    top = padded.max(axis=1, keepdims=True)
    # Without the shift by the true maximum everything underflows when all values are very negative.
    weights = np.exp((x.astype(np.float32) - top).astype(np.float32))
    return weights / weights.sum(axis=1, keepdims=True)


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def test_tail_mask() -> None:
    def fails(inputs: Arrays) -> bool:
        with np.errstate(all="ignore"):
            return not np.allclose(masked_softmax(inputs["x"]), softmax(inputs["x"]), atol=1e-3)

    values = -200 - np.abs(normal(33, 300))
    found = shrink(fails, {"x": values}, ROWS)
    assert found.inputs["x"].shape == (1, 1)
    assert_one_minimal(found, fails, ROWS)


@pytest.mark.parametrize(
    ("width", "test"),
    [
        (1, lambda n: n % 8 != 0),
        (9, lambda n: n > 8 and n % 8 != 0),
        (129, lambda n: n >= 129),
        (5, lambda n: n in (5, 70, 200, 300)),
        (77, lambda n: n in (77, 300)),
        (128, lambda n: n in (128, 300)),
    ],
)
def test_the_smallest_failing_size_is_found(width: int, test: Callable[[int], bool]) -> None:
    """Failing is not monotonic in a size; neither bisection nor a list of sizes would do."""
    fails = x_of(lambda x: test(x.shape[1]))
    found = shrink(fails, {"x": normal(33, 300)}, ROWS)
    assert found.inputs["x"].shape == (1, width)
    assert found.dims == {"M": 1, "N": width}
    assert not found.inputs["x"].any()
    assert_one_minimal(found, fails, ROWS)


def test_lost_accumulation() -> None:
    """``=`` for ``+=`` over tiles of 16: two tiles are needed, and one product that is not zero."""

    def blocked(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        out = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for start in range(0, a.shape[1], 16):
            out = a[:, start : start + 16] @ b[start : start + 16]
        return out

    def fails(inputs: Arrays) -> bool:
        a, b = inputs["a"], inputs["b"]
        return not np.allclose(blocked(a, b), a.astype(float) @ b, atol=1e-3)

    found = shrink(fails, {"a": normal(20, 100), "b": normal(100, 30, seed=1)}, MATMUL)
    assert found.dims == {"M": 1, "K": 17, "N": 1}
    assert_one_minimal(found, fails, MATMUL)
    for name in ("a", "b"):
        assert np.count_nonzero(found.inputs[name]) == 1
        assert found.inputs[name][found.inputs[name] != 0] == 1.0


@pytest.mark.parametrize("hint", [None, {"M": 20, "N": 217}, {"M": 0, "N": 0}])
def test_one_nan_is_kept(hint: dict[str, int] | None) -> None:
    values = normal(33, 300)
    values[20, 217] = np.nan
    fails = x_of(lambda x: np.isnan(x).any() and x.shape[1] >= 3)
    found = shrink(fails, {"x": values}, ROWS, failing=hint)
    assert found.inputs["x"].shape == (1, 3)
    assert np.isnan(found.inputs["x"]).sum() == 1
    assert_one_minimal(found, fails, ROWS)


def test_a_hint_saves_calls() -> None:
    values = normal(33, 300)
    needle = values[20, 217]
    fails = x_of(lambda x: (x == needle).any())
    blind = shrink(fails, {"x": values}, ROWS)
    told = shrink(fails, {"x": values}, ROWS, failing={"M": 20, "N": 217})
    assert told.inputs["x"].tolist() == blind.inputs["x"].tolist() == [[needle]]
    assert told.calls < blind.calls / 2


def test_two_equal_dims() -> None:
    """Swapped axes keep the shape only when both are equal, and show only above 1."""
    fails = x_of(lambda x: x.shape[0] == x.shape[1] and not np.array_equal(x, x.T))
    found = shrink(fails, {"x": normal(33, 33)}, ROWS)
    assert found.inputs["x"].shape == (2, 2)
    assert np.count_nonzero(found.inputs["x"]) == 1
    assert_one_minimal(found, fails, ROWS)


def test_two_elements_far_apart() -> None:
    values = normal(33, 300)
    values[3, 7] = values[29, 280] = 100
    fails = x_of(lambda x: (x == 100).sum() >= 2)
    found = shrink(fails, {"x": values}, ROWS)
    assert found.inputs["x"].size <= 4
    assert_one_minimal(found, fails, ROWS)


def test_inputs_that_depend_on_one_another() -> None:
    def fails(inputs: Arrays) -> bool:
        return bool((inputs["a"] > inputs["b"] + 2).any())

    found = shrink(fails, {"a": normal(16, 60), "b": normal(16, 60, seed=1)}, PAIR)
    assert [array.shape for array in found.inputs.values()] == [(1, 1), (1, 1)]
    assert found.inputs["a"] - found.inputs["b"] == 3.0
    assert_one_minimal(found, fails, PAIR)


@pytest.mark.parametrize(
    ("dtype", "bound", "smallest"),
    [
        (np.float32, 2.5, 3.0),
        (np.float16, 0.3, 1.0),
        (ml_dtypes.bfloat16, 2.5, 3.0),
        (ml_dtypes.float8_e4m3fn, 1.2, 2.0),
        (np.float64, 0.0, 1.0),
    ],
)
def test_value_threshold(dtype: Any, bound: float, smallest: float) -> None:
    fails = x_of(lambda x: (x.astype(np.float64) > bound).any())
    values = normal(9, 30).astype(dtype)
    found = shrink(fails, {"x": values})
    assert found.inputs["x"].tolist() == [[smallest]]
    assert found.inputs["x"].dtype == values.dtype
    assert_one_minimal(found, fails)


@pytest.mark.parametrize(
    ("dtype", "values", "test", "smallest"),
    [
        (np.int8, [-100, 50, 127], lambda x: x < -17, [-20]),
        (np.uint64, [2**64 - 1, 3], lambda x: x > 2**63, [10**19]),
        (np.int64, [-(2**63), 3], lambda x: x < -(2**62), [-5 * 10**18]),
        (np.bool_, [True, False, True], lambda x: x, [True]),
        (np.int32, [7, 8, 9], lambda x: x % 2 == 1, [1]),
    ],
)
def test_integers(dtype: Any, values: list[int], test: Any, smallest: list[int]) -> None:
    fails = x_of(lambda x: test(x).any())
    found = shrink(fails, {"x": np.array(values, dtype)})
    assert found.inputs["x"].tolist() == smallest
    assert_one_minimal(found, fails)


@pytest.mark.parametrize(
    ("values", "test", "smallest"),
    [
        ([np.nan, 1.0], np.isnan, np.nan),
        ([-np.inf, 1.0], np.isinf, -np.inf),
        ([5e-324, 0.0], lambda x: (x > 0) & (x < 1e-300), 1e-301),
        ([1.7e308, 0.0], lambda x: x > 1e300, 2e300),
        ([-0.0, 1.0], lambda x: (x == 0) & np.signbit(x), -0.0),
        ([0.123456789], lambda x: (x > 0.12) & (x < 0.2), 0.123),
    ],
)
def test_numbers_at_the_edge(values: list[float], test: Any, smallest: float) -> None:
    fails = x_of(lambda x: test(x).any())
    found = shrink(fails, {"x": np.array(values)})
    (element,) = found.inputs["x"]
    assert repr(float(element)) == repr(smallest)
    assert found.one_minimal


def test_all_elements_are_needed() -> None:
    fails = x_of(lambda x: (x != 0).all() and x.shape[1] >= 4)
    found = shrink(fails, {"x": normal(5, 30)}, ROWS)
    assert found.inputs["x"].tolist() == [[1.0, 1.0, 1.0, 1.0]]
    assert_one_minimal(found, fails, ROWS)


def test_a_scalar() -> None:
    fails = x_of(lambda x: x > 3)
    found = shrink(fails, {"x": np.array(7.7317, np.float32)})
    assert found.inputs["x"].shape == ()
    assert found.inputs["x"] == 4.0
    assert found.one_minimal


def test_an_empty_input() -> None:
    fails = x_of(lambda x: x.size == 0)
    found = shrink(fails, {"x": np.zeros((0, 5), np.float32)})
    assert found.inputs["x"].shape == (0, 1)
    assert found.one_minimal


def test_a_size_of_zero_where_the_schema_has_it() -> None:
    schema = OpSchema((Dim("N", (), 0, 50),), (TensorDef("x", ("N",)),))
    found = shrink(x_of(lambda x: True), {"x": normal(40)}, schema)
    assert found.dims == {"N": 0}
    assert found.one_minimal


def test_without_inputs() -> None:
    found = minimise({}, still_fails=lambda _: True, budget=3)
    assert (found.inputs, found.steps, found.one_minimal) == ({}, 0, True)


@pytest.mark.parametrize(
    ("dim", "smallest"),
    [
        (Dim("N", (4, 9, 100)), 4),
        (Dim("N", (), 3, 300), 3),
        (Dim("N", (), 1, 300, 4), 4),
        (Dim("N", (), 30, 300, 8), 32),
    ],
)
def test_sizes_stay_within_the_schema(dim: Dim, smallest: int) -> None:
    schema = OpSchema((dim,), (TensorDef("x", ("N",)),))
    found = shrink(x_of(lambda x: True), {"x": normal(100)}, schema)
    assert found.dims == {"N": smallest}
    assert found.one_minimal


@pytest.mark.parametrize(
    ("dtype", "low", "high", "rest"),
    [
        (np.int32, 3, 100, 3),
        (np.int32, -5, -1, -1),
        (np.int32, None, -4, -4),
        (np.int32, 1, 50, 1),
        (np.int32, -5, 50, 0),
        (np.float32, 0.5, 2.0, 1.0),
        (np.float32, 3.0, 100.0, 3.0),
        (np.float32, -9.0, -2.0, -2.0),
    ],
)
def test_values_stay_within_the_schema(
    dtype: Any, low: float | None, high: float | None, rest: float
) -> None:
    schema = OpSchema(ROWS.dims, (TensorDef("x", ("M", "N"), low=low, high=high),))
    bottom = low if low is not None else -50
    top = high if high is not None else 50
    values = np.linspace(bottom, top, 45, endpoint=False).reshape(5, 9)
    values = (np.floor(values) if dtype is np.int32 else values).astype(dtype)
    seen: list[np.ndarray] = []

    def fails(inputs: Arrays) -> bool:
        seen.append(inputs["x"])
        return True

    found = shrink(fails, {"x": values}, schema)
    assert found.inputs["x"].tolist() == [[rest]]
    for array in seen:
        assert low is None or array.min() >= low
        assert high is None or array.max() <= high
