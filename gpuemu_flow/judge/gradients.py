"""Judge gradients: elements with several correct values, and missing gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.model.types import CheckResult, Failure, FailureKind, Verdict
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.numerics.gradients import (
    Excused,
    Kinks,
    input_of,
    is_gradient,
    is_of_parameter,
)

Arrays = Mapping[str, NDArray[Any]]


def gradients_in(outputs: Arrays) -> frozenset[str]:
    return frozenset(filter(is_gradient, outputs))


def as_submitted(actual: Arrays, expected: Arrays) -> Arrays:
    """Return the expected outputs without the gradients that a client did not submit."""
    missing = gradients_in(expected) - actual.keys()
    return {n: a for n, a in expected.items() if n not in missing} if missing else expected


def half_judged(result: CheckResult, judged: Arrays, expected: Arrays) -> CheckResult:
    """Return the result of a submission that may lack gradients. If gradients are missing, the
    verdict ``passed`` becomes ``inconclusive``."""
    missing = sorted(expected.keys() - judged.keys())
    if not missing:
        return result
    names = ", ".join(map(repr, missing))
    note = (
        f"no verdict on {names}: the outputs were submitted without, and `gradients` asks for "
        "them; submit them beside the outputs"
    )
    passed = result.verdict is Verdict.PASSED
    verdict = Verdict.INCONCLUSIVE if passed else result.verdict
    size = sum(expected[name].size for name in missing)
    stats = replace(
        result.stats,
        count=result.stats.count + size,
        num_no_verdict=result.stats.num_no_verdict + size,
    )
    return replace(result, verdict=verdict, stats=stats, notes=(note, *result.notes))


def with_parameters(actual: Arrays, expected: Arrays, dtypes: Mapping[str, list[str]]) -> Arrays:
    """Return an op's outputs, with gradients of exactly those parameters that the reference has. If
    the op lacks a parameter, or has frozen it, the gradient is zeros: PyTorch treats a missing
    gradient as 0."""
    kept = {n: a for n, a in actual.items() if n in expected or not is_of_parameter(n)}
    missing = {
        name: np.zeros(array.shape, numpy_dtype(dtypes[name][0]))
        for name, array in expected.items()
        if is_of_parameter(name) and name not in actual
    }
    return {**kept, **missing}


def excused(result: CheckResult, actual: Arrays, kinks: Kinks) -> dict[str, Excused]:
    """Find elements of failed gradients that are not to count as errors. Most of them are at kinks
    of the reference, where several values are correct. The result has an entry for each gradient
    that has such elements."""
    failed = {failure.output for failure in result.failures if is_gradient(failure.output)}
    found = {name: kinks.excuse(name, actual[name]) for name in sorted(failed & actual.keys())}
    return {name: excuse for name, excuse in found.items() if excuse}


def corrected(actual: Arrays, expected: Arrays, found: Mapping[str, Excused]) -> Arrays:
    """Return the outputs; elements that differ but are correct get the reference's values."""
    with np.errstate(all="ignore"):
        replaced = {
            name: np.where(excuse.right, expected[name].astype(actual[name].dtype), actual[name])
            for name, excuse in found.items()
        }
    return {**actual, **replaced}


def explained(result: CheckResult, actual: Arrays, found: Mapping[str, Excused]) -> CheckResult:
    """Explain in a result which elements were not judged, and which inputs no gradient reaches."""
    notes = tuple(
        f"{int(excuse.unjudged.sum())} of {excuse.unjudged.size} elements of {name!r} are not held "
        "against the op: the gradient jumps there, or the input is not finite"
        for name, excuse in found.items()
        if excuse.unjudged.any() and result.verdict is not Verdict.PASSED
    )
    failures = tuple(_explained(failure, actual) for failure in result.failures)
    return replace(result, failures=failures, notes=(*notes, *result.notes))


def _explained(failure: Failure, actual: Arrays) -> Failure:
    array = actual.get(failure.output)
    missing = (
        is_gradient(failure.output)
        and failure.kind is FailureKind.TOLERANCE
        and array is not None
        and not np.count_nonzero(array)
    )
    if not missing:
        return failure
    text = f"no gradient arrives at {input_of(failure.output)!r}: it is detached, or its gradient "
    return replace(failure, message=f"{text}is None or 0 everywhere; {failure.message}")


def worse(result: CheckResult, other: CheckResult, label: str) -> CheckResult:
    """Return the worse of an op's result and its variant's, whose verdicts differ."""
    if result.verdict is not Verdict.PASSED:
        return result
    note = f"{result.verdict.value} as it stands, but not with {label}"
    return replace(other, notes=(note, *other.notes))
