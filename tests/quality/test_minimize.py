"""Minimisation of planted bugs: the smallest case, proven to be so by a search of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuemu_flow.cases.minimize import (
    Candidate,
    Minimized,
    StopMinimising,
    failing_position,
    minimise,
    minimised_case,
)
from gpuemu_flow.cases.op_schema import Dim, OpSchema, TensorDef
from gpuemu_flow.numerics.layouts import describe
from gpuemu_flow.types import Case, InputSpec

Arrays = Mapping[str, np.ndarray]
Fails = Callable[[Arrays], bool]

ROWS = OpSchema(
    (Dim("M", (), 1, 40), Dim("N", (), 1, 520)),
    (TensorDef("x", ("M", "N")),),
    (TensorDef("y", ("M", "N")),),
)
PAIR = OpSchema(ROWS.dims, (TensorDef("a", ("M", "N")), TensorDef("b", ("M", "N"))))
MATMUL = OpSchema(
    (Dim("M", (), 1, 64), Dim("K", (), 1, 300), Dim("N", (), 1, 64)),
    (TensorDef("a", ("M", "K")), TensorDef("b", ("K", "N"))),
    (TensorDef("c", ("M", "N")),),
)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def shrink(
    fails: Fails,
    inputs: Arrays,
    schema: OpSchema | None = None,
    budget: int = 2000,
    **settings: Any,
) -> Minimized:
    """Minimise with a predicate on plain arrays; no more calls than the budget allows."""
    calls = 0

    def still_fails(candidate: Candidate) -> bool:
        nonlocal calls
        calls += 1
        for name, size in candidate.dims.items():
            assert schema is not None
            found = [
                array.shape[axis]
                for tensor in schema.inputs
                for axis, dim in enumerate(tensor.dims)
                if dim == name and (array := candidate.inputs[tensor.name]) is not None
            ]
            assert found == [size] * len(found), f"{name} is {size} in dims and {found} in shapes"
        return fails(candidate.inputs)

    dims = {
        dim: size
        for tensor in (schema.inputs if schema is not None else ())
        for dim, size in zip(tensor.dims, inputs[tensor.name].shape, strict=True)
        if isinstance(dim, str)
    }
    found = minimise(
        inputs, still_fails=still_fails, budget=budget, schema=schema, dims=dims, **settings
    )
    assert calls == found.calls <= budget
    assert fails(found.inputs) == found.reproduced
    return found


def neighbours(inputs: Arrays, axes: Mapping[str, list[tuple[str, int]]]) -> list[Arrays]:
    """Every case with one index of one dim dropped, one dim cut off, or one element zeroed."""
    found: list[Arrays] = []
    for members in axes.values():
        size = inputs[members[0][0]].shape[members[0][1]]
        keeps = [np.arange(n) for n in range(1, size)]
        keeps += [np.delete(np.arange(size), n) for n in range(size) if size > 1]
        for keep in keeps:
            smaller = dict(inputs)
            for name, axis in members:
                smaller[name] = np.take(smaller[name], keep, axis=axis)
            found.append(smaller)
    for name, array in inputs.items():
        for position in np.flatnonzero(array.astype(bool)):
            zeroed = array.copy()
            zeroed.reshape(-1)[position] = 0
            found.append({**inputs, name: zeroed})
    return found


def axes_of(schema: OpSchema | None, inputs: Arrays) -> dict[str, list[tuple[str, int]]]:
    if schema is None:
        rank = max(array.ndim for array in inputs.values())
        return {str(n): [(name, n) for name in inputs] for n in range(rank)}
    return {
        dim.name: [
            (tensor.name, axis)
            for tensor in schema.inputs
            for axis, name in enumerate(tensor.dims)
            if name == dim.name
        ]
        for dim in schema.dims
    }


def assert_one_minimal(found: Minimized, fails: Fails, schema: OpSchema | None = None) -> None:
    assert found.reproduced
    assert found.one_minimal
    for neighbour in neighbours(found.inputs, axes_of(schema, found.inputs)):
        assert not fails(neighbour), f"a smaller case fails: {neighbour}"


def x_of(test: Callable[[np.ndarray], Any]) -> Fails:
    return lambda inputs: bool(test(inputs["x"]))


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
        (299, lambda n: n >= 299),
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
        (np.int32, -5, -1, -2),
        (np.int32, None, -4, -5),
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
        assert high is None or array.max() < high or (array.max() == high and dtype is np.float32)


def test_a_dim_of_two_axes_shrinks_in_both() -> None:
    schema = OpSchema(
        (Dim("N", (), 1, 50),), (TensorDef("x", ("N", "N")), TensorDef("y", (3, "N")))
    )
    found = shrink(
        lambda inputs: inputs["x"].shape[0] >= 2 and inputs["x"].trace() != 0,
        {"x": normal(20, 20), "y": normal(3, 20)},
        schema,
    )
    assert {name: array.shape for name, array in found.inputs.items()} == {"x": (2, 2), "y": (3, 2)}
    assert np.count_nonzero(found.inputs["x"]) == 1
    assert not found.inputs["y"].any()


def test_plain_shapes_share_their_axes() -> None:
    def fails(inputs: Arrays) -> bool:
        return inputs["a"].shape == inputs["b"].shape and inputs["a"].shape[1] > 5

    found = shrink(fails, {"a": normal(7, 7), "b": normal(7, 7, seed=1)})
    assert [array.shape for array in found.inputs.values()] == [(1, 6), (1, 6)]
    assert found.dims == {}


def test_plain_shapes_that_differ_share_sizes() -> None:
    def fails(inputs: Arrays) -> bool:
        return inputs["a"].shape[1] == inputs["b"].shape[0] and inputs["a"].shape[1] >= 3

    found = shrink(fails, {"a": normal(11, 7), "b": normal(7, 5), "s": np.array(2.0)})
    assert [array.shape for array in found.inputs.values()] == [(1, 3), (3, 1), ()]


def test_a_reference_that_refuses_a_case_is_no_failure() -> None:
    """A filter larger than the image: the two dims shrink only as far as the op is defined."""
    schema = OpSchema(
        (Dim("H", (), 1, 70), Dim("R", (), 1, 9)), (TensorDef("x", ("H",)), TensorDef("w", ("R",)))
    )

    def fails(inputs: Arrays) -> bool:
        return inputs["x"].size >= inputs["w"].size >= 3

    found = shrink(fails, {"x": normal(64), "w": normal(9)}, schema)
    assert found.dims == {"H": 3, "R": 3}


@pytest.mark.parametrize("layout", ["strided", "transposed", "offset"])
def test_layouts_become_contiguous_unless_they_are_the_reason(layout: str) -> None:
    values = {"a": normal(6, 8), "b": normal(6, 8, seed=1)}
    layouts = {"a": layout, "b": layout}

    def still_fails(candidate: Candidate) -> bool:
        laid = candidate.laid_out()["b"]
        contiguous = laid.flags.c_contiguous and laid.ctypes.data % 16 == 0
        return bool((laid > 1).any()) and not contiguous

    found = minimise(values, still_fails=still_fails, budget=900, layouts=layouts)
    assert found.one_minimal
    assert found.layouts == {"a": "contiguous", "b": layout}
    assert not found.inputs["a"].any()
    relaxed = minimise(values, still_fails=lambda _: True, budget=900, layouts=layouts)
    assert relaxed.layouts == {"a": "contiguous", "b": "contiguous"}


def test_expanded_inputs_stay_expanded_where_that_is_the_reason() -> None:
    def still_fails(candidate: Candidate) -> bool:
        laid = candidate.laid_out()["x"]
        return 0 in laid.strides and laid.shape[0] > 1 and bool((laid > 1).any())

    values = np.broadcast_to(normal(1, 9, seed=4) + 2, (7, 9))
    found = minimise({"x": values}, still_fails=still_fails, budget=900, layouts={"x": "expanded"})
    assert found.inputs["x"].tolist() == [[2.0], [2.0]]
    assert found.layouts == {"x": "expanded"}
    assert describe("expanded", (2, 1)) == (0, 1)
    assert found.one_minimal


def test_the_original_bytes_are_kept_by_slicing() -> None:
    values = normal(12, 40)
    known = set(values.reshape(-1).tolist())
    fails = x_of(lambda x: known.issuperset(x.reshape(-1).tolist()) and x.shape[1] > 10)
    found = shrink(fails, {"x": values}, ROWS, strategy="binary-search-dims")
    assert found.inputs["x"].shape == (1, 11)
    assert known.issuperset(found.inputs["x"].reshape(-1).tolist())


def test_strategies() -> None:
    fails = x_of(lambda x: (x > 1).any())
    values = normal(12, 40)
    dims = shrink(fails, {"x": values}, ROWS, strategy="binary-search-dims")
    assert dims.inputs["x"].shape == (1, 1)
    assert dims.inputs["x"][0, 0] in values
    alone = shrink(fails, {"x": values}, ROWS, strategy="binary-search-values")
    assert alone.inputs["x"].shape == values.shape
    assert np.count_nonzero(alone.inputs["x"]) == 1
    assert alone.inputs["x"].max() == 2.0
    assert dims.one_minimal
    assert alone.one_minimal
    with pytest.raises(ValueError, match="no strategy 'shrink-all'"):
        shrink(fails, {"x": values}, ROWS, strategy="shrink-all")


@pytest.mark.parametrize("budget", [1, 2, 7, 40, 90, 200])
def test_a_budget_that_ends_first_is_admitted(budget: int) -> None:
    """Every element is needed as it is: nothing can be done, and that takes long to find out."""
    values = normal(30, 300)
    fails = x_of(lambda x: x.tobytes() == values.tobytes())
    found = shrink(fails, {"x": values}, ROWS, budget=budget)
    assert found.reproduced
    assert found.calls == budget
    assert not found.one_minimal
    assert np.array_equal(found.inputs["x"], values)


def test_minimal_is_said_only_after_the_whole_search() -> None:
    """However the budget is divided between values and shapes, too little is never enough."""
    values = normal(1, 24)
    fails = x_of(lambda x: x.tobytes() == values.tobytes())
    whole = shrink(fails, {"x": values}, ROWS, budget=5000)
    assert whole.one_minimal
    for budget in range(1, whole.calls, 9):
        assert not shrink(fails, {"x": values}, ROWS, budget=budget).one_minimal
    assert shrink(fails, {"x": values}, ROWS, budget=2 * whole.calls).one_minimal


def test_what_lies_between_the_ends_is_dropped() -> None:
    """Neither first nor last indices, nor any window, keep both ends of a dim."""
    values = np.array([[5, 1, 2, 3, 4, 8, 9, 6, 1, 2, 3, 7]], np.int32)
    fails = x_of(lambda x: x[0, 0] == 5 and x[0, -1] == 7)
    found = shrink(fails, {"x": values}, ROWS, strategy="binary-search-dims")
    assert found.inputs["x"].tolist() == [[5, 7]]
    assert found.one_minimal


def test_the_best_so_far_survives_the_end_of_the_budget() -> None:
    fails = x_of(lambda x: (x[:, ::2] > 1).any())
    values = normal(33, 300)
    sizes = [shrink(fails, {"x": values}, ROWS, budget=n).inputs["x"].size for n in (1, 5, 50, 999)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == values.size
    assert sizes[-1] == 1


def test_a_failure_that_no_longer_shows() -> None:
    found = shrink(x_of(lambda x: False), {"x": normal(3, 4)}, ROWS)
    assert (found.reproduced, found.one_minimal, found.calls, found.steps) == (False, False, 1, 0)


def test_each_candidate_is_asked_once() -> None:
    seen: set[bytes] = set()

    def still_fails(candidate: Candidate) -> bool:
        digest = candidate.digest()
        assert digest not in seen
        seen.add(digest)
        return bool((candidate.inputs["x"] > 0.5).sum() >= 3)

    assert minimise({"x": normal(9, 40)}, still_fails=still_fails, budget=5000).one_minimal


def test_the_caller_may_stop_it() -> None:
    calls = 0

    def still_fails(candidate: Candidate) -> bool:
        nonlocal calls
        calls += 1
        if calls == 10:
            raise StopMinimising
        return candidate.inputs["x"].size > 10

    found = minimise({"x": normal(9, 40)}, still_fails=still_fails, budget=5000)
    assert found.reproduced
    assert not found.one_minimal
    assert 10 < found.inputs["x"].size < 360


def test_other_exceptions_pass() -> None:
    def still_fails(candidate: Candidate) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        minimise({"x": normal(3)}, still_fails=still_fails, budget=5)


def test_nobody_can_spoil_the_best_candidate() -> None:
    values = normal(3, 4)
    before = values.copy()

    def still_fails(candidate: Candidate) -> bool:
        with pytest.raises(ValueError, match="read-only"):
            candidate.inputs["x"][...] = 0
        return True

    minimise({"x": values}, still_fails=still_fails, budget=50)
    assert np.array_equal(values, before)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"budget": 0}, "budget of 0"),
        ({"layouts": {"x": "diagonal"}}, "unknown layout 'diagonal'"),
        ({"inputs": {"x": np.zeros(3, complex)}}, "unknown dtype complex128"),
    ],
)
def test_nonsense_is_refused(settings: dict[str, Any], words: str) -> None:
    given = {"inputs": {"x": normal(3)}, "budget": 5, **settings}
    with pytest.raises(ValueError, match=words):
        minimise(given.pop("inputs"), still_fails=lambda _: True, **given)


@pytest.mark.parametrize("seed", range(12))
def test_any_set_of_needed_elements_is_found(seed: int) -> None:
    """Some elements are needed for the failure, wherever they lie: these remain, and only these."""
    rng = np.random.default_rng(seed)
    values = rng.integers(1, 1000, (9, 31)).astype(np.float64)
    needed = rng.choice(values.size, size=int(rng.integers(1, 5)), replace=False)
    values.reshape(-1)[needed] = -np.arange(1, len(needed) + 1) * 1000 - 0.5
    wanted = set(values.reshape(-1)[needed].tolist())
    fails = x_of(lambda x: wanted.issubset(x.reshape(-1).tolist()))
    found = shrink(fails, {"x": values}, ROWS)
    assert set(found.inputs["x"].reshape(-1).tolist()) - {0.0} == wanted
    assert_one_minimal(found, fails, ROWS)


@pytest.mark.parametrize(
    ("index", "position"), [((3, 7), {"M": 3, "N": 7}), ((3,), {}), ((1, 2, 3), {})]
)
def test_failing_position(index: tuple[int, ...], position: dict[str, int]) -> None:
    assert failing_position(ROWS, {"x": (33, 300)}, "y", index) == position


def test_failing_position_without_a_schema_of_outputs() -> None:
    assert failing_position(PAIR, {"a": (4, 5)}, "y", (2, 3)) == {"axis 0": 2, "axis 1": 3}


def test_the_case_of_a_minimised_failure() -> None:
    specs = tuple(InputSpec(name, (16, 60), "float32", "strided") for name in "ab")
    case = Case(4, 99, "float32", "strided", "wide", specs, dims=(("M", 16), ("N", 60)))
    found = minimise(
        {"a": normal(16, 60), "b": normal(16, 60)},
        still_fails=lambda candidate: candidate.dims["N"] >= 9,
        budget=900,
        schema=PAIR,
        dims=dict(case.dims),
        layouts={"a": "strided", "b": "strided"},
    )
    small = minimised_case(case, found)
    assert small.dims == (("M", 1), ("N", 9))
    assert [(spec.shape, spec.layout) for spec in small.inputs] == [((1, 9), "contiguous")] * 2
    assert (small.layout, small.seed, small.strategy) == ("contiguous", 99, "wide")
