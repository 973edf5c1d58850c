"""The place of a failure, and the values there if there are any."""

from __future__ import annotations

from gpuemu_flow.model.types import Failure, FailureKind
from gpuemu_flow.model.verdicts import shown_values


def shown(**fields: object) -> str:
    return shown_values(Failure(FailureKind.UNWRITTEN, "text", **fields))  # type: ignore[arg-type]


def test_an_element_without_values_has_its_place_alone() -> None:
    assert shown(output="y", index=(1, 2)) == "first at y[1, 2]"


def test_one_value_is_enough_to_show_both() -> None:
    assert shown(index=(), expected=2.0) == "output[]: actual None, expected 2.0"
    assert shown(index=(3,), actual=1.5, expected=2.0) == "output[3]: actual 1.5, expected 2.0"


def test_an_element_that_breaks_an_invariant_was_compared_with_nothing() -> None:
    assert shown(index=(2,), actual=-1.5) == "output[2]: actual -1.5"


def test_without_a_place_there_is_nothing_to_show() -> None:
    assert shown(actual=1.0, expected=2.0) == ""
