"""Minimisation: what may be changed, what a budget leaves, and what comes of odd predicates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from shrinking import PAIR, ROWS, Arrays, assert_one_minimal, normal, shrink, x_of

from gpuemu_flow.cases.candidates import Candidate, StopMinimising
from gpuemu_flow.cases.minimize import minimise, minimised_case
from gpuemu_flow.cases.op_schema import Dim, OpSchema, TensorDef
from gpuemu_flow.cases.shrink_shapes import failing_position
from gpuemu_flow.model.types import Case, InputSpec
from gpuemu_flow.numerics.layouts import describe


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


@pytest.mark.parametrize("budget", [1, 7, 90])
def test_a_budget_that_ends_first_is_admitted(budget: int) -> None:
    """Every element is needed as it is: nothing can be done, and that takes long to find out."""
    values = normal(30, 300)
    fails = x_of(lambda x: x.tobytes() == values.tobytes())
    found = shrink(fails, {"x": values}, ROWS, budget=budget)
    assert found.reproduced
    assert found.calls == budget
    assert not found.one_minimal
    assert np.array_equal(found.inputs["x"], values)


@pytest.mark.ci
@pytest.mark.ci
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


def test_values_that_become_zero_are_one_step() -> None:
    values = normal(1, 24)
    found = shrink(
        x_of(lambda x: x[0, 20] > 0), {"x": abs(values)}, ROWS, strategy="binary-search-values"
    )
    zeroed = [line for line in found.log if "to zero" in line]
    assert zeroed == ["23 values to zero"]


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


@pytest.mark.parametrize("seed", range(4))
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
