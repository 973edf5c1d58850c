"""Fuzz an op in this process against a reference that is a Python function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpuemu_flow.client.results import FailureInfo, FuzzResults, ValidationResult, summed
from gpuemu_flow.frameworks.base import caller
from gpuemu_flow.frameworks.local import checked_precision, compare, outputs_by_name, reference_of
from gpuemu_flow.frameworks.local_shadow import Versions
from gpuemu_flow.numerics.dtypes import to_float64, widened
from gpuemu_flow.numerics.operand import TENSOR_CORE
from gpuemu_flow.types import FailureKind, Verdict
from gpuemu_flow.verdicts import Elements, decide


class FuzzCase(Protocol):
    """A case, with the interface of `fuzzing.TestCase`."""

    @property
    def seed(self) -> int:
        """Return the seed that identifies the case."""

    def tensors(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the case's inputs as arrays."""


def fuzz_locally(
    op_fn: Callable[..., Any],
    ref_fn: Callable[..., Any] | None,
    cases: Iterable[FuzzCase],
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
    versions = None if ref_fn is None else Versions(ref_fn)
    done: list[ValidationResult] = []
    for case in cases:
        limits = _Limits(atol, rtol, allowed)
        done.append(
            _judged(
                op_fn, ref_fn, versions, case, tuple(names), op_name, limits, convert or np.copy
            )
        )
        if fail_fast and not done[-1].passed and done[-1].verdict != Verdict.INCONCLUSIVE.value:
            break
    return summed(seed or 0, done)


class _Limits(NamedTuple):
    """The tolerance and precision of one comparison."""

    atol: float | None
    rtol: float | None
    precision: str


def _judged(
    op_fn: Callable[..., Any],
    ref_fn: Callable[..., Any] | None,
    versions: Versions | None,
    case: FuzzCase,
    names: tuple[str, ...],
    op_name: str,
    limits: _Limits,
    convert: Callable[[Any], Any],
) -> ValidationResult:
    inputs = case.tensors(names)
    try:
        returned = caller(op_fn, inputs)({n: convert(a) for n, a in inputs.items()})
        actual = outputs_by_name(returned)
    except Exception as error:
        return error_result(op_name, case.seed, error)
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
        return error_result(op_name, case.seed, error, FailureKind.REFERENCE)
    return compare(
        actual,
        expected,
        inputs=inputs,
        op_name=op_name,
        seed=case.seed,
        atol=limits.atol,
        rtol=limits.rtol,
        precision=limits.precision,
        reference=reference_of(versions, lambda function, given: caller(function, inputs)(given)),
    )


def error_result(
    op_name: str, seed: int, error: BaseException, kind: FailureKind = FailureKind.EXECUTION
) -> ValidationResult:
    """Return the result of a case in which the op, or its reference, raised."""
    return ValidationResult(
        seed=seed,
        op_name=op_name,
        max_diff=float("inf"),
        max_rel_diff=float("inf"),
        failures=[FailureInfo(kind.value, f"{type(error).__name__}: {error}")],
        verdict=Verdict.ERROR.value,
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
