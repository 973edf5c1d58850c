"""Explicit tolerances: defaults, and which place wins."""

from __future__ import annotations

from typing import Any

from for_each import for_each

from gpuemu_flow.model.types import DTYPES, Tolerance
from gpuemu_flow.numerics.contract import (
    DEFAULT_ORIGIN,
    PartialTolerance,
    default_tolerance,
    resolve,
)
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS


@for_each(
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


def test_the_most_specific_place_wins() -> None:
    places = {
        "validation_tolerances": {"float32": PartialTolerance(2.0, 2.0)},
        "kernel_tolerances": {"float32": PartialTolerance(4.0, 4.0)},
        "op_tolerances": {"float32": PartialTolerance(5.0, 5.0)},
    }
    given: dict[str, Any] = {}
    expected = [("validation", 2.0), ("kernel", 4.0), ("op", 5.0)]
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
