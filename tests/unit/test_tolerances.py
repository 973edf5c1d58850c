"""Explicit tolerances: defaults, parsing with all its problems, and which place wins."""

from __future__ import annotations

from typing import Any

import pytest

from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS
from gpuemu_flow.numerics.tolerances import (
    DEFAULT_ORIGIN,
    PartialTolerance,
    default_tolerance,
    parse_table,
    parse_tolerance,
    resolve,
)
from gpuemu_flow.types import DTYPES, Tolerance


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float64", 1e-10),
        ("float32", 1e-5),
        ("float16", 1e-2),
        ("bfloat16", 1e-2),
        ("int32", 0.0),
        ("uint8", 0.0),
        ("bool", 0.0),
        ("something_else", 1e-5),
    ],
)
def test_documented_defaults(dtype: str, value: float) -> None:
    assert default_tolerance(dtype) == Tolerance(value, value, "default")


def test_every_float_default_admits_a_neighbouring_value() -> None:
    """Two right ops may round to neighbours; a default below one epsilon would fail one of them."""
    for name, limits in FLOAT_LIMITS.items():
        assert default_tolerance(name).rtol >= limits.eps
    assert set(FLOAT_LIMITS) <= set(DTYPES)


def test_a_number_is_absolute_only() -> None:
    assert parse_tolerance(1e-3, "t") == (PartialTolerance(1e-3, 0.0), [])
    assert parse_tolerance(0, "t") == (PartialTolerance(0.0, 0.0), [])


def test_a_table_may_give_one_member() -> None:
    assert parse_tolerance({"atol": 1}, "t") == (PartialTolerance(1.0, None), [])
    assert parse_tolerance({"rtol": 2.5}, "t") == (PartialTolerance(None, 2.5), [])
    both = {"atol": 1e-3, "rtol": 1e-4}
    assert parse_tolerance(both, "t") == (PartialTolerance(1e-3, 1e-4), [])


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -1e-9, -1, 10**400, True, "1e-5", None, [1e-5], {}, {"atol": "x"}],
)
def test_what_is_not_a_finite_number_from_zero_up_is_a_problem(value: Any) -> None:
    tolerance, problems = parse_tolerance(value, "ops.softmax.tolerances.float32")
    assert tolerance is None
    (problem,) = problems
    assert problem.slug == "config-bad-tolerance"
    assert problem.message.startswith("ops.softmax.tolerances.float32")


def test_unknown_members_are_warned_of_with_the_nearest_name() -> None:
    tolerance, problems = parse_tolerance({"atoll": 1, "rtol": 1}, "t")
    assert tolerance == PartialTolerance(None, 1.0)
    (problem,) = problems
    assert problem.warning
    assert problem.slug == "config-unknown-key"
    assert "atol" in problem.hint


def test_a_table_reports_all_its_problems_and_keeps_what_is_usable() -> None:
    table = {"f16": 1e-2, "flaot32": 1, "float32": -1, "bf16": {"rtol": 0.1}, "half": 3, "int8": 1}
    parsed, problems = parse_table(table, "validation.tolerances")
    assert parsed == {
        "float16": PartialTolerance(1e-2, 0.0),
        "bfloat16": PartialTolerance(None, 0.1),
        "int8": PartialTolerance(1.0, 0.0),
    }
    assert [p.slug for p in problems] == [
        "config-unknown-dtype",
        "config-bad-tolerance",
        "config-duplicate-dtype",
    ]
    assert "float32" in problems[0].hint


def test_the_most_specific_place_wins() -> None:
    places = {
        "user_tolerances": {"float32": PartialTolerance(1.0, 1.0)},
        "validation_tolerances": {"float32": PartialTolerance(2.0, 2.0)},
        "calibrated": {"float32": PartialTolerance(3.0, 3.0)},
        "kernel_tolerances": {"float32": PartialTolerance(4.0, 4.0)},
        "op_tolerances": {"float32": PartialTolerance(5.0, 5.0)},
    }
    given: dict[str, Any] = {}
    expected = [("user", 1.0), ("validation", 2.0), ("calibrated", 3.0), ("kernel", 4.0)]
    expected.append(("op", 5.0))
    for (name, table), (origin, value) in zip(places.items(), expected, strict=True):
        given[name] = table
        assert resolve("float32", **given) == Tolerance(value, value, origin)
        assert resolve("float16", **given) == default_tolerance("float16")
    call = PartialTolerance(6.0, 6.0)
    assert resolve("float32", **given, call=call) == Tolerance(6.0, 6.0, "call")


def test_partial_tables_inherit_the_missing_member_and_say_so() -> None:
    op, validation = {"float32": PartialTolerance(atol=0.5)}, {"float32": PartialTolerance(9, 7)}
    assert resolve("float32", op) == Tolerance(0.5, 1e-5, "atol op, rtol default")
    assert resolve("float32", op, validation) == Tolerance(0.5, 7, "atol op, rtol validation")


def test_only_what_no_place_gives_is_a_default() -> None:
    assert resolve("float32").origin == DEFAULT_ORIGIN
    for given in (PartialTolerance(rtol=1e-5), PartialTolerance(1e-5, 1e-5)):
        assert resolve("float32", {"float32": given}).origin != DEFAULT_ORIGIN
