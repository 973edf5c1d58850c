"""Fuzz an op in this process against a reference that is a Python function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuemu_flow.client.results import (
    FailureInfo,
    FuzzResults,
    ValidationResult,
    raised_result,
    summed,
)
from gpuemu_flow.frameworks.base import caller
from gpuemu_flow.frameworks.local import checked_precision, compare, outputs_by_name, reference_of
from gpuemu_flow.frameworks.local_shadow import Versions
from gpuemu_flow.model.types import FailureKind, Verdict
from gpuemu_flow.model.verdicts import Elements, decide
from gpuemu_flow.numerics.dtypes import to_float64, widened
from gpuemu_flow.numerics.operand import TENSOR_CORE

if TYPE_CHECKING:
    from gpuemu_flow.fuzzing import TestCase


def fuzz_locally(
    op_fn: Callable[..., Any],
    ref_fn: Callable[..., Any] | None,
    cases: Iterable[TestCase],
    *,
    seed: int | None = None,
    names: Sequence[str] = ("input",),
    op_name: str = "op",
    atol: float | None = None,
    rtol: float | None = None,
    precision: str = TENSOR_CORE,
    fail_fast: bool = False,
    convert: Callable[[Any], Any] | None = None,
) -> FuzzResults:
    """Run an op on cases and compare its outputs with those of a Python function.

    Parameters
    ----------
    ref_fn : callable, optional
        The reference: a function of numpy arrays, with float inputs in float64. Without a
        reference, a case fails if the op raises, or returns NaN or Inf.
    names : sequence of str
        Names of the op's inputs.
    precision : str
        Which values a correct op may round: ``tensor-core``, ``float32`` or ``input``; see
        ``docs/oracle.md``.
    convert : callable, optional
        Turns an array into an argument of the op; by default, copies the array.
    """
    allowed = checked_precision(precision) or TENSOR_CORE
    limits: dict[str, Any] = {"atol": atol, "rtol": rtol, "precision": allowed}
    versions = None if ref_fn is None else Versions(ref_fn)
    done: list[ValidationResult] = []
    for case in cases:
        done.append(
            _judged(op_fn, ref_fn, versions, case, names, op_name, limits, convert or np.copy)
        )
        if fail_fast and not done[-1].passed and done[-1].verdict != Verdict.INCONCLUSIVE.value:
            break
    return summed(seed or 0, done)


def _judged(
    op_fn: Callable[..., Any],
    ref_fn: Callable[..., Any] | None,
    versions: Versions | None,
    case: TestCase,
    names: Sequence[str],
    op_name: str,
    limits: Mapping[str, Any],
    convert: Callable[[Any], Any],
) -> ValidationResult:
    inputs = case.tensors(names)
    try:
        returned = caller(op_fn, inputs)({n: convert(a) for n, a in inputs.items()})
        actual = outputs_by_name(returned)
    except Exception as error:
        return raised_result(op_name, case.seed, f"{type(error).__name__}: {error}")
    if ref_fn is None or versions is None:
        failures = _finite_only(actual, inputs)
        looked_at = sum(np.size(array) for array in actual.values())
        verdict = decide(bool(failures), looked_at)
        return ValidationResult(
            passed=verdict is Verdict.PASSED,
            seed=case.seed,
            op_name=op_name,
            failures=failures,
            verdict=verdict.value,
            compared=Elements(looked_at, 0, looked_at).to_json(),
        )
    try:
        expected = caller(ref_fn, inputs)(widened(inputs))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return raised_result(op_name, case.seed, text, FailureKind.REFERENCE)
    return compare(
        actual,
        expected,
        inputs=inputs,
        op_name=op_name,
        seed=case.seed,
        **limits,
        reference=reference_of(versions, lambda function, given: caller(function, inputs)(given)),
    )


def _finite_only(outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> list[FailureInfo]:
    """Judge an op without a reference: return a failure for each output with NaN or Inf.

    If an input contains NaN or Inf, return no failures.
    """
    if not all(np.isfinite(to_float64(a)).all() for a in inputs.values()):
        return []
    return [
        FailureInfo(FailureKind.NAN.value, f"{name!r} holds NaN or Inf", output=name)
        for name, array in outputs.items()
        if not np.isfinite(to_float64(array)).all()
    ]
