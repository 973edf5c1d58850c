"""Fillings of an input lie on the side of a condition that they say, and in the input's bounds."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuemu_flow.cases.predicates import Predicate
from gpuemu_flow.fuzz.fillings import fillings
from gpuemu_flow.types import Case, InputSpec
from gpuemu_flow.value_rules import ValueRule

KINDS = {
    "magnitude_above": 3.0,
    "largest_above": -2.0,
    "lowest_below": 5.0,
    "row_range_above": 0.01,
    "row_offset_above": 10.0,
    "row_least_magnitude_below": 0.5,
    "row_least_top_below": 1.0,
}


def case_of(*specs: InputSpec) -> Case:
    return Case(0, 7, "float32", "contiguous", "normal", specs)


def filled(
    kind: str, bound: float, given: NDArray[np.generic], spec: InputSpec | None = None
) -> list[tuple[bool, NDArray[np.generic]]]:
    spec = spec or InputSpec("x", given.shape, str(given.dtype))
    return list(fillings(Predicate(kind, "x", bound), case_of(spec), given, 7))


def of_condition(kind: str, bound: float, values: NDArray[np.generic]) -> bool:
    """The condition, written anew."""
    rows = values.astype(np.float64).reshape(-1, values.shape[-1])
    top, size = rows.max(axis=1), np.abs(rows).max(axis=1)
    spread = np.maximum(rows.std(axis=1), 1e-30)
    return bool(
        {
            "magnitude_above": size.max() >= bound,
            "largest_above": top.max() >= bound,
            "lowest_below": rows.min() <= bound,
            "row_range_above": np.ptp(rows, axis=1).max() >= bound,
            "row_offset_above": (np.abs(rows.mean(axis=1)) / spread).max() >= bound,
            "row_least_magnitude_below": size.min() <= bound,
            "row_least_top_below": top.min() <= bound,
        }[kind]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_both_sides_are_filled_in_several_ways(kind: str, dtype: str) -> None:
    given = np.zeros((6, 40), dtype)
    found = filled(kind, KINDS[kind], given)
    sides = [inside for inside, _ in found]
    assert sides.count(True) >= 2 and sides.count(False) >= 2
    for inside, values in found:
        assert values.shape == given.shape and values.dtype == given.dtype
        assert inside == of_condition(kind, KINDS[kind], values), values
    if kind in ("magnitude_above", "row_range_above", "row_offset_above"):
        assert {bool((values < 0).any()) for inside, values in found if inside} == {True, False}


def test_values_stay_within_the_schemas_bounds() -> None:
    given = np.zeros((4, 9), np.int64)
    spec = InputSpec("x", given.shape, "int64", low=0.0, high=12.0)
    found = filled("magnitude_above", 5.0, given, spec)
    assert {inside for inside, _ in found} == {True, False}
    assert all(values.min() >= 0 and values.max() <= 12 for _, values in found)


@pytest.mark.parametrize(
    "rule",
    [
        ValueRule(kind="permutation"),
        ValueRule(values=(0, 1)),
        ValueRule(low="N", high=None),
        ValueRule(relation="<=", other="y"),
        ValueRule(optional=True),
    ],
)
def test_an_input_with_a_rule_of_its_own_is_not_filled(rule: ValueRule) -> None:
    given = np.zeros((4, 9), np.float32)
    spec = InputSpec("x", given.shape, "float32", rule=rule)
    assert filled("magnitude_above", 5.0, given, spec) == []


def test_an_input_that_another_one_refers_to_is_not_filled() -> None:
    given = np.zeros((4, 9), np.float32)
    x = InputSpec("x", given.shape, "float32")
    y = InputSpec("y", (4,), "int64", rule=ValueRule(kind="indices", of="x"))
    predicate = Predicate("magnitude_above", "x", 5.0)
    assert list(fillings(predicate, case_of(x, y), given, 7)) == []


@pytest.mark.parametrize("predicate", [("above", "N", 3), ("holds", "x", "nan")])
def test_other_conditions_are_not_challenged(predicate: tuple[str, str, str | int]) -> None:
    given = np.zeros((4, 9), np.float32)
    x = InputSpec("x", given.shape, "float32")
    assert list(fillings(Predicate(*predicate), case_of(x), given, 7)) == []


MARKED = {"zero": 0.0, "negative": -2.0, "nan": np.nan, "infinite": -np.inf, "not_finite": np.inf}


@pytest.mark.parametrize("mark", MARKED)
def test_marked_elements_are_taken_out_and_one_is_put_in(mark: str) -> None:
    given = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    given[1] = given[2, 0] = MARKED[mark]
    found = list(fillings(Predicate("holds", "x", mark), case_of(spec_of(given)), given, 7))
    assert [inside for inside, _ in found] == [False, True, False, True]
    for inside, values in found:
        new = ~np.isin(values, given[0]) & ~np.isin(values, given[2])
        assert np.count_nonzero(new | (values == MARKED[mark]) | ~np.isfinite(values)) == inside
        assert values.shape == given.shape and values.dtype == given.dtype


def spec_of(given: NDArray[np.generic], rule: ValueRule | None = None) -> InputSpec:
    return InputSpec("x", given.shape, str(given.dtype), rule=rule)


def test_lengths_are_exchanged_for_other_lengths() -> None:
    given = np.array([0, 5, 3, 0], np.int64)
    spec = spec_of(given, ValueRule(kind="lengths", to="S"))
    found = list(fillings(Predicate("holds", "x", "zero"), case_of(spec), given, 7))
    assert [np.count_nonzero(values == 0) for _, values in found] == [0, 1, 0, 1]
    assert {int(n) for _, values in found for n in values} <= {0, 3, 5}


@pytest.mark.parametrize(
    "rule",
    [
        ValueRule(kind="offsets"),
        ValueRule(kind="lengths", total="T"),
        ValueRule(generate="g.py:f"),
        ValueRule(optional=True),
    ],
)
def test_marked_elements_that_others_depend_on_stay(rule: ValueRule) -> None:
    given = np.array([0, 1, 3, 3], np.int64)
    assert not list(
        fillings(Predicate("holds", "x", "zero"), case_of(spec_of(given, rule)), given, 7)
    )
    zeros = np.zeros(4, np.int64)
    assert not list(fillings(Predicate("holds", "x", "zero"), case_of(spec_of(zeros)), zeros, 7))
