"""Test what fails an element although its tolerance has no verdict: invariants, strict policies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from envelope_ops import F32, Function

from gpuemu_flow.model.types import CheckResult, FailureKind, Verdict
from gpuemu_flow.numerics.compare import Policy, check_outputs
from gpuemu_flow.numerics.envelope import Envelope

NAN, INF = float("nan"), float("inf")
ROWS = 20


def deviation(x: np.ndarray) -> np.ndarray:
    """Standard deviation in one pass: rounding alone decides it where a row hardly varies."""
    return np.sqrt(np.maximum((x * x).mean(-1) - x.mean(-1) ** 2, 0))


def rows(first: float = 0.1) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((ROWS, 37))
    x[0] = 3000 + first * x[0]
    return x.astype(F32)


def check(first: float, x: np.ndarray, **policy: Any) -> CheckResult:
    """Give `first` for the first row, right values for the others."""
    inputs, expected = {"x": x}, {"y": deviation(x.astype(np.float64))}
    actual = deviation(x)
    actual[0] = first
    reference = Function(deviation)
    envelope = Envelope(
        inputs, expected, reference, dtype="float32", seed=1, exact_op=False, weak=False
    )
    return check_outputs(
        {"y": actual},
        expected,
        tolerance=envelope,
        policy=Policy(**policy),
        expected_dtypes={"y": "float32"},
        inputs=inputs,
    )


def test_no_verdict_is_given_where_rounding_alone_decides() -> None:
    result = check(1e-3, rows())
    assert (result.verdict, result.stats.num_no_verdict) == (Verdict.PASSED, 1)
    assert check(1e-3, rows(first=1000.0)).verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("first", "names"),
    [
        (NAN, ("no_nan", "finite")),
        (INF, ("no_inf", "finite")),
        (-1e-6, ("non_negative",)),
    ],
)
def test_invariants_hold_where_there_is_no_verdict(first: float, names: tuple[str, ...]) -> None:
    every = ("no_nan", "no_inf", "finite", "non_negative")
    result = check(first, rows(), invariants=every)
    assert result.verdict is Verdict.FAILED
    assert {f.kind for f in result.failures} == {FailureKind.INVARIANT}
    broken = [failure.message.split()[1] for failure in result.failures]
    assert sorted(broken) == sorted(names)
    assert all(failure.index == (0,) for failure in result.failures)
    assert check(1e-3, rows(), invariants=every).verdict is Verdict.PASSED


def test_a_strict_policy_fails_what_has_no_verdict() -> None:
    for value, policy, kind in (
        (NAN, {"nan_policy": "strict"}, FailureKind.NAN),
        (INF, {"inf_policy": "strict"}, FailureKind.INF),
        (NAN, {"nan_policy": "strict", "inf_policy": "ignore"}, FailureKind.NAN),
    ):
        result = check(value, rows(), **policy)
        assert result.verdict is Verdict.FAILED
        (failure,) = result.failures  # it exceeds no tolerance: that has no verdict
        assert (failure.kind, failure.index) == (kind, (0,))
        assert "which the strict policy forbids" in failure.message
    other = {"nan_policy": "match", "inf_policy": "strict"}
    assert check(NAN, rows(), **other).verdict is Verdict.PASSED


def test_strict_forbids_nothing_where_the_inputs_hold_nan() -> None:
    x = rows()
    x[1, 0] = NAN
    assert check(NAN, x, nan_policy="strict").verdict is Verdict.PASSED


def test_nan_without_a_verdict_is_told() -> None:
    told = f"NaN where a finite value is expected, without a verdict: 1 of {ROWS}"
    assert told in check(NAN, rows()).notes
    for value in (INF, 1e-3):
        result = check(value, rows())
        assert result.stats.num_no_verdict == 1
        assert not any("NaN" in note for note in result.notes)
    assert not any("without a verdict" in note for note in check(NAN, rows(first=1000.0)).notes)
