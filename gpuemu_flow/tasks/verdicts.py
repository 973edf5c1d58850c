"""Verdicts that need no values: programs that gave no outputs, checks that the runner made."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuemu_flow.runners.api import RunError
from gpuemu_flow.types import CheckResult, ErrorStats, Failure, FailureKind, Verdict

STDERR = "stderr:"  # first line of a note that holds a program's own words
_WHO = {FailureKind.REFERENCE: "the reference", FailureKind.EXECUTION: "the op"}


def run_error_result(kind: FailureKind, error: RunError) -> CheckResult:
    """The verdict on a case whose op or reference (`kind`) gave no usable outputs."""
    place = f" ({error.file}:{error.line})" if error.line else ""
    failure = Failure(kind, f"{_WHO[kind]}: {error.slug}: {error.message}{place}")
    notes = []
    if error.hint:
        notes.append(f"hint: {error.hint}")
    if error.stderr_tail:
        notes.append(f"{STDERR}\n{error.stderr_tail}")
    return CheckResult(Verdict.ERROR, (failure,), ErrorStats(), tuple(notes))


_EXCEPTION = re.compile(r"the \w+: op-exception: ([\w.]+)")
_SLUG = re.compile(r"the \w+: ([a-z0-9-]+): ")


def reason(failure: Failure) -> str:
    """Why a case did not pass, told apart more finely than by kind: a crash is no exception.

    Cases with one reason may have one cause; those with different ones hardly do.
    """
    found = _EXCEPTION.match(failure.message) or _SLUG.match(failure.message)
    if failure.kind not in _WHO or found is None:
        return failure.kind.value
    return f"{failure.kind.value}:{found[1]}"


def with_violations(result: CheckResult, violations: Sequence[Failure]) -> CheckResult:
    """Add what the runner saw (an input modified, a guard overwritten) to a verdict."""
    if not violations:
        return result
    verdict = result.verdict if result.verdict is Verdict.ERROR else Verdict.FAILED
    return CheckResult(verdict, tuple(violations) + result.failures, result.stats, result.notes)
