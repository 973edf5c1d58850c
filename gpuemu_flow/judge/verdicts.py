"""Combine a case's outcomes, comparison and the runner's findings into a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.cases.generated_values import case_fault
from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.types import (
    GENERATOR_SLUGS,
    NOT_CALLED_SLUG,
    Case,
    CheckResult,
    Failure,
    FailureKind,
    Json,
    Verdict,
)
from gpuemu_flow.model.verdicts import Tally, decide
from gpuemu_flow.workers.api import NOT_RUN_SLUG, RunError

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
    place = f"{error.file}:{error.line}" if error.file and error.line else ""
    message = f"{_WHO[kind]}: {error.slug}: {error.message}{f' ({place})' if place else ''}"
    # A program that cannot be loaded fails for the same reason in all cases, whatever it raised.
    why = error.exception if error.slug == EXCEPTION and error.exception else error.slug
    failure = Failure(kind, message, why=why, place=place)
    notes = (f"hint: {error.hint}",) if error.hint else ()
    verdict = Verdict.SKIPPED if error.slug in UNTRIED else Verdict.ERROR
    return CheckResult(
        verdict, (failure,), notes=notes, stderr=error.stderr_tail, stdout=error.stdout_tail
    )


def without_outputs(
    case: Case, reference: RunError | None, op: RunError | None
) -> CheckResult | None:
    """Return the verdict if a program has no outputs.

    The reference's error takes precedence over the op's, unless the reference's error only says
    that it was not run. Empty inputs on which the reference raises are not for this op.
    """
    empty = any(0 in spec.shape for spec in case.inputs)
    if empty and reference is not None and reference.slug == EXCEPTION:
        said = (
            f"the reference refuses empty inputs ({reference.message}): no case of this op; "
            "`min = 1` of a dim leaves them out"
        )
        return CheckResult(decide(False, 0), (), notes=(said,), uncounted=True)
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
    told = replace(error, message=f"while comparing: {error.message}")
    return run_error_result(FailureKind.REFERENCE, told)


def reason(failure: Failure) -> str:
    """Return a text that tells apart failures of the same kind, such as a crash and an exception.

    Cases with the same reason may have the same cause; cases with different reasons rarely do.
    """
    return f"{failure.kind.value}:{failure.why}" if failure.why else failure.kind.value


def is_special(result: CheckResult) -> bool:
    """Tell whether only NaN and Inf were expected where it failed; others are shown before it."""
    expected = [one.expected for one in result.failures]
    return bool(expected) and all(v is not None and not math.isfinite(v) for v in expected)


OUTSIDE = (FailureKind.OUT_OF_BOUNDS, FailureKind.OUT_OF_BOUNDS_READ)


def with_violations(result: CheckResult, violations: Sequence[Failure]) -> CheckResult:
    """Add the runner's findings, such as a modified input, to a result; the verdict becomes failed.

    An ``error`` stays an ``error``. Accesses out of bounds come first: others may follow from them.
    """
    if not violations:
        return result
    violations = sorted(violations, key=lambda failure: failure.kind not in OUTSIDE)
    verdict = result.verdict if result.verdict is Verdict.ERROR else Verdict.FAILED
    return replace(result, verdict=verdict, failures=(*violations, *result.failures))


def with_printed(result: CheckResult, printed: str) -> CheckResult:
    """Add the text that a kernel printed to the result of a case that did not pass."""
    if not printed or result.verdict is Verdict.PASSED:
        return result
    return replace(result, printed=printed)


# Sum up the verdicts of many cases, as ``run`` prints them per op and dtype.


FEW = 0.25
"""Share of an output's elements that may fail in a case that is tried under other keys."""
PASSES_UNDER = "this passes under"
"""Beginning of notes that name a key under which a case would pass."""


def few_values(result: CheckResult) -> bool:
    """Tell whether a case failed by few values only, which another tolerance may explain."""
    stats = result.stats
    values_only = all(failure.kind is FailureKind.TOLERANCE for failure in result.failures)
    return values_only and stats.num_exceeding <= FEW * stats.count


def without_vain_keys(
    results: Sequence[tuple[Case, CheckResult]],
) -> list[tuple[Case, CheckResult]]:
    """Return the results without the notes that name a key, if it would not make the op pass."""
    failed = [result for _, result in results if result.verdict is Verdict.FAILED]

    def names(result: CheckResult) -> bool:
        return any(note.startswith(PASSES_UNDER) for note in result.notes)

    if all(names(result) for result in failed if few_values(result)):
        return list(results)

    def without(result: CheckResult) -> CheckResult:
        notes = tuple(note for note in result.notes if not note.startswith(PASSES_UNDER))
        return replace(result, notes=notes) if result.verdict is Verdict.FAILED else result

    return [(case, without(result)) for case, result in results]


WORST = ("max_abs", "max_rel", "max_ulp", "tolerance_used")


def summarise(results: Iterable[tuple[Case, CheckResult]]) -> dict[str, Json]:
    """Return, as JSON, the overall verdict, the counts per verdict, and the worst error figures."""
    tally = Tally()
    worst = dict.fromkeys(WORST, 0.0)
    for _, result in results:
        tally.add(result)
        for name in WORST:
            value = getattr(result.stats, name)
            # NaN compares false with everything: a figure that is NaN is the worst there is.
            if not value <= worst[name]:
                worst[name] = value
    summary = tallied(tally)
    if tally.counts.get(Verdict.SKIPPED):
        hung = f"{summary['skipped']} of {tally.cases} cases were not run"
        summary["reason"] = summary["reason"] or f"{hung}, since those before them hung"
    return {**summary, **plain(worst)}


def tallied(tally: Tally) -> dict[str, Json]:
    """Return the verdict of a tally, its reason and the counts as JSON.

    The keys are those of `summarise`, except for its error figures.
    """
    verdict, reason = tally.verdict()
    counts = tally.counts
    return {
        "verdict": verdict.value,
        "reason": reason,
        "cases": tally.cases,
        "passed": counts.get(Verdict.PASSED, 0),
        "failed": counts.get(Verdict.FAILED, 0),
        "inconclusive": counts.get(Verdict.INCONCLUSIVE, 0),
        "errors": counts.get(Verdict.ERROR, 0),
        "skipped": counts.get(Verdict.SKIPPED, 0),
        "unjudged": tally.unjudged,
        "loose": list(tally.passed_by_zeros),
        "constant": tally.always_the_same,
    }


# The error of a case whose inputs cannot be made because the user's function failed.


def input_error(case: Case) -> RunError | None:
    """Return the error of the case's input that could not be made; None if all inputs were made."""
    fault = case_fault(case)
    if fault is None:
        return None
    return RunError(fault.slug, fault.message, fault.hint, file=fault.file, line=fault.line)


class StoredCase(Struct, frozen=True):
    """One case, and the recorded outcomes of op and reference, whose outputs are blobs."""

    case: Case
    op: Mapping[str, Json]
    reference: Mapping[str, Json]

    def without_outputs(self) -> CheckResult | None:
        """Return the verdict if a program gave no outputs; see `without_outputs`."""
        reference, op = (
            None if record["ok"] else convert(record["error"], RunError)
            for record in (self.reference, self.op)
        )
        return without_outputs(self.case, reference, op)

    def verdict(self, compared: CheckResult) -> CheckResult:
        """Return the result of the comparison, completed by the runner's findings about the op."""
        violations = convert(self.op["violations"], list[Failure], strict=False)
        result = with_violations(compared, violations)
        return with_printed(result, str(self.op.get("printed", "")))
