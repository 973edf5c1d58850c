"""A verdict names the setting that would change it, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from envelope_ops import Function
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.judge.judge import Judge
from gpuemu_flow.judge.subject import CompareParams
from gpuemu_flow.model.types import Case, CheckResult, InputSpec, Verdict
from gpuemu_flow.numerics.operand import Rounding, rounded, rounding_to
from gpuemu_flow.numerics.perturb import Arrays

Array = NDArray[Any]
F16, F32 = np.float16, np.float32


def rmsnorm(x: Array, weight: Array) -> Array:
    """Round the steps that `precision = "input"` lets an op round, as a rewritten source does."""
    square = rounded(rounded(x * x).mean(-1, keepdims=True))
    normed = rounded(x / rounded(np.sqrt(square + 1e-6)))
    result: Array = rounded(normed * weight)
    return result


def cast_before_the_weight(x: Array, weight: Array) -> Array:
    wide = x.astype(F32)
    normed = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + F32(1e-6))
    return (weight.astype(F32) * normed.astype(F16)).astype(F16)


class Reference:
    """The norm above, with its steps rounded when the judge asks for it."""

    has_source = True

    def __init__(self) -> None:
        self.roundings: list[Rounding | None] = []
        self._function = Function(rmsnorm)

    def __call__(
        self, inputs: Arrays, *, shadow: bool = False, rounding: Rounding | None = None
    ) -> Arrays:
        self.roundings.append(rounding)
        with rounding_to(rounding if rounding is not None and rounding.steps else None):
            return self._function(inputs, shadow=shadow)


def judged(
    op: Callable[..., Array], x: Array, precision: str = "tensor-core", strategy: str = "extremes"
) -> tuple[CheckResult, Reference]:
    weight = np.full(x.shape[-1], 100.0, F16)
    specs = tuple(
        InputSpec(name, array.shape, "float16", strategy=strategy, position=place)
        for place, (name, array) in enumerate({"x": x, "weight": weight}.items())
    )
    case = Case(0, 7, "float16", "contiguous", strategy, specs)
    plain = replace(
        case, strategy="normal", inputs=tuple(replace(s, strategy="normal") for s in specs)
    )
    settings = CompareParams(tolerance="auto", tolerances={}, precision=precision)
    reference = Reference()
    judge = Judge(settings, {"y": ["float16"]}, [plain], reference)
    inputs = {"x": x, "weight": weight}
    expected = reference({name: array.astype(np.float64) for name, array in inputs.items()})
    return judge.check(case, {"y": op(x, weight)}, expected, inputs), reference


def graded() -> Array:
    """Rows with one large element: what else they hold is subnormal in half after the norm."""
    x = np.random.default_rng(1).standard_normal((8, 64)).astype(F16)
    x[0] *= F16(1e-3)
    x[0, 0] = 60000.0
    return x


def test_a_failure_names_the_precision_that_passes_it() -> None:
    result, _ = judged(cast_before_the_weight, graded())
    assert result.verdict is Verdict.FAILED
    note = next(note for note in result.notes if "precision" in note)
    assert 'precision = "input"' in note
    assert "float16" in note
    assert judged(cast_before_the_weight, graded(), "input")[0].verdict is Verdict.PASSED


def test_a_failure_that_no_precision_passes_names_none() -> None:
    def wrong(x: Array, weight: Array) -> Array:
        result = cast_before_the_weight(x, weight)
        result[3, 5] *= F16(2)
        return result

    result, _ = judged(wrong, graded())
    assert result.verdict is Verdict.FAILED
    assert not any("precision" in note for note in result.notes)


@pytest.mark.parametrize("wrong", ["everywhere", "not a number"])
def test_what_cannot_come_of_rounding_is_not_tried(wrong: str) -> None:
    def op(x: Array, weight: Array) -> Array:
        result = cast_before_the_weight(x, weight)
        result[1:] *= F16(2 if wrong == "everywhere" else 1)
        result[3, 5] = np.nan if wrong == "not a number" else 1.0
        return result

    result, reference = judged(op, graded())
    assert result.verdict is Verdict.FAILED
    assert not any(rounding is not None and rounding.steps for rounding in reference.roundings)


def product(x: Array, weight: Array) -> Array:
    """Multiply and add from left to right."""
    result: Array = np.cumsum(x * weight, -1)[..., -1]
    return result


def sums(x: Array, strategy: str) -> CheckResult:
    """Judge sums that are wrong where they overflow on the way, and so without a verdict."""
    weight = np.ones(x.shape[-1], F32)
    specs = tuple(
        InputSpec(name, array.shape, "float32", strategy=strategy, position=place)
        for place, (name, array) in enumerate({"x": x, "weight": weight}.items())
    )
    case = Case(0, 7, "float32", "contiguous", strategy, specs)
    plain = replace(
        case, strategy="normal", inputs=tuple(replace(s, strategy="normal") for s in specs)
    )
    reference = Function(product)
    reference.has_source = True  # type: ignore[attr-defined]
    settings = CompareParams(tolerance="auto", tolerances={})
    judge = Judge(settings, {"y": ["float32"]}, [plain], reference)  # type: ignore[arg-type]
    inputs = {"x": x, "weight": weight}
    expected = reference({name: array.astype(np.float64) for name, array in inputs.items()})
    own = np.where(np.abs(x).max(-1) > 1e30, np.nan, product(x, weight)).astype(F32)
    return judge.check(case, {"y": own}, expected, inputs)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_case_without_a_verdict_names_the_range_that_gives_one() -> None:
    x = np.random.default_rng(2).standard_normal((8, 6)).astype(F32)
    x[::2] = F32(3e38) * np.array([1, -1, 1, -1, 1, -1], F32)
    result = sums(x, "extremes")
    assert result.verdict is Verdict.INCONCLUSIVE
    note = next(note for note in result.notes if "range" in note)
    assert note.startswith("x holds numbers whose squares leave ")
    assert not any("range" in note for note in sums(x, "given").notes), "nothing was drawn"
    x[::2] = 1.0
    assert sums(x, "extremes").verdict is Verdict.PASSED
