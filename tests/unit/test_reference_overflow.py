"""The remark that a reference overflows where a right op gives numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuemu_flow.judge.traits import overflow_notes
from gpuemu_flow.model.errors import Problem, RunnerError

Array = NDArray[Any]
X = np.array([-3.0, 2.0, 750.0, 1e5], np.float32)
OVERFLOWING: dict[str, tuple[Callable[[Array], Array], str]] = {
    "softplus": (lambda x: np.log(1 + np.exp(x)), "`exp` of 750 and more"),
    "its other form": (lambda x: np.log1p(np.exp(x)), "`exp` of 750 and more"),
    "log-sum-exp": (lambda x: np.log(np.exp(x).sum(keepdims=True)), "`exp` of 750 and more"),
    "hypot": (lambda x: np.sqrt((x * 1e300) ** 2 + 1), "`power`|`square`"),
    "softmax": (lambda x: np.exp(x) / np.exp(x).sum(keepdims=True), "`exp` of 750 and more"),
    "in place": (lambda x: np.log(np.exp(x, out=x.copy())), "`exp` of 750"),
}
NUMBERS: dict[str, Callable[[Array], Array]] = {
    "logarithm of zero": lambda x: np.log(x - x),
    "quotient by zero": lambda x: 1 / (x - x),
    "infinite constant": lambda x: np.where(x > 700, np.inf, x),
}


def notes(function: Callable[[Array], Array], x: Array, op: float = 1.0) -> list[str]:
    with np.errstate(all="ignore"):
        expected = {"y": function(x.astype(np.float64))}
        actual = {"y": np.full(expected["y"].shape, op, np.float32)}
        return overflow_notes(
            actual, expected, {"x": x}, lambda inputs, **_: {"y": function(inputs["x"])}
        )


@pytest.mark.parametrize("name", OVERFLOWING)
def test_the_function_that_overflows_is_named(name: str) -> None:
    function, which = OVERFLOWING[name]
    (note,) = notes(function, X)
    assert note.startswith("the reference itself overflows in float64, in ")
    assert any(part in note for part in which.split("|")), note
    assert "the reference is wrong there, not the op" in note


@pytest.mark.parametrize("name", NUMBERS)
def test_infinities_without_an_overflow_are_no_reason(name: str) -> None:
    assert notes(NUMBERS[name], X) == []


def test_nothing_is_said_without_a_number_in_place_of_inf() -> None:
    softplus = OVERFLOWING["softplus"][0]
    assert notes(softplus, X[:2]) == []
    assert notes(softplus, X, op=np.inf) == []
    assert notes(softplus, X, op=np.nan) == []
    assert notes(softplus, np.array([1.0, np.inf], np.float32)) == []
    softmax = OVERFLOWING["softmax"][0]
    assert notes(softmax, np.array([750.0, 1.0, np.nan], np.float32)) == []


def test_a_reference_that_refuses_the_arrays_gives_no_note() -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RunnerError(Problem("reference-failed", "no subclass, please"))

    expected = {"y": np.array([np.inf])}
    assert overflow_notes({"y": np.zeros(1)}, expected, {"x": X[:1]}, refuse) == []
