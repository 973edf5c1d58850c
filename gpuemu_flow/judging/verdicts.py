"""Combine a case's outcomes, comparison and the runner's findings into a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from gpuemu_flow.runners.api import NOT_RUN_SLUG, RunError
from gpuemu_flow.types import CheckResult, Failure, FailureKind, Verdict
from gpuemu_flow.value_rules import GENERATOR_SLUGS, NOT_CALLED_SLUG

EXCEPTION = "op-exception"
UNSTEADY = "reference-unsteady"
"""Reason of a failure of a reference whose outputs differ between identical calls."""

UNTRIED = (NOT_RUN_SLUG, NOT_CALLED_SLUG)
"""Errors of cases that were not tried, because earlier cases hung."""
_WHO = {
    FailureKind.REFERENCE: "the reference",
    FailureKind.EXECUTION: "the op",
    FailureKind.GENERATOR: "an input",
}


def run_error_result(kind: FailureKind, error: RunError) -> CheckResult:
    """Return the verdict on a case whose op or reference gave no usable outputs.

    `kind` says which of the two it was. If `error` comes from a user's function that makes an
    input, neither of them is at fault, and the kind ``GeneratorError`` is used instead. The verdict
    is ``skipped`` for a case that was not run because earlier cases hung.
    """
    kind = FailureKind.GENERATOR if error.slug in GENERATOR_SLUGS else kind
    place = f"{error.file}:{error.line}" if error.line else ""
    message = f"{_WHO[kind]}: {error.slug}: {error.message}{f' ({place})' if place else ''}"
    # A program that cannot be loaded fails for the same reason in all cases, whatever it raised.
    why = error.exception if error.slug == EXCEPTION and error.exception else error.slug
    failure = Failure(kind, message, why=why, place=place)
    notes = (f"hint: {error.hint}",) if error.hint else ()
    verdict = Verdict.SKIPPED if error.slug in UNTRIED else Verdict.ERROR
    return CheckResult(
        verdict, (failure,), notes=notes, stderr=error.stderr_tail, stdout=error.stdout_tail
    )


def without_outputs(reference: RunError | None, op: RunError | None) -> CheckResult | None:
    """Return the verdict if a program has no outputs.

    The reference's error takes precedence over the op's, unless the reference's error only says
    that it was not run.
    """
    both = ((reference, FailureKind.REFERENCE), (op, FailureKind.EXECUTION))
    found = [(error, kind) for error, kind in both if error is not None]
    for error, kind in sorted(found, key=lambda each: each[0].slug in UNTRIED):
        return run_error_result(kind, error)
    return None


def comparison_failed(error: RunError) -> CheckResult:
    """Return the verdict on a case whose comparison did not finish.

    A comparison evaluates the reference on further inputs, on which the reference may raise an
    exception, crash or hang.
    """
    told = msgspec.structs.replace(error, message=f"while comparing: {error.message}")
    return run_error_result(FailureKind.REFERENCE, told)


def reason(failure: Failure) -> str:
    """Return a text that tells apart failures of the same kind, such as a crash and an exception.

    Cases with the same reason may have the same cause; cases with different reasons rarely do.
    """
    return f"{failure.kind.value}:{failure.why}" if failure.why else failure.kind.value


def with_violations(result: CheckResult, violations: Sequence[Failure]) -> CheckResult:
    """Add the runner's findings, such as a modified input, to a result; the verdict becomes failed.

    An ``error`` stays an ``error``.
    """
    if not violations:
        return result
    verdict = result.verdict if result.verdict is Verdict.ERROR else Verdict.FAILED
    return replace(result, verdict=verdict, failures=(*violations, *result.failures))


def with_printed(result: CheckResult, printed: str) -> CheckResult:
    """Add the text that a kernel printed to the result of a case that did not pass."""
    if not printed or result.verdict is Verdict.PASSED:
        return result
    return replace(result, printed=printed)
