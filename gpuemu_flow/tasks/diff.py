"""Stage ``diff``: find changes of an op's results since the previous run.

Reads the comparisons of all dtypes of the op, and the previous result of this stage. Writes the
current summary, the previous one, and the differences, such as a worse verdict or a larger error.
Verdicts are compared on common cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.types import BAD, Case, Json, Verdict
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import (
    RESULT,
    DiffParams,
    StageContext,
    StageResult,
    TaskSpec,
    params_of,
)

STAGE = stages.DIFF
_DIGITS = 16  # of a case's digest, by which the cases of two summaries are paired
_ABSOLUTE_SLACK = 1e-10  # an error that grew from nothing to this is still nothing


def run(spec: TaskSpec, context: StageContext) -> StageResult:
    """Compare an op's summaries with those of the previous run."""
    current = {
        source.role.partition(":")[2]: read_summary(context.result(source.task, stages.COMPARE))
        for source in spec.inputs
    }
    previous = read_previous(context.cache, spec)
    threshold = params_of(DiffParams, spec.params).regression_threshold
    changes = [
        change
        for dtype, summary in current.items()
        for change in compare_summaries(dtype, previous.get(dtype), summary, threshold)
    ]
    regressions = sum(change["kind"] == "regression" for change in changes)
    content = result_of(STAGE, current, previous, changes)
    return StageResult(content, values={"regressions": regressions})


def read_summary(found: Mapping[str, Json]) -> dict[str, Json]:
    """Return the summary in a comparison's result, with two additions. ``cases_digest`` is a digest
    of all cases. ``case_verdicts`` maps each verdict to the digests of the cases that have it."""
    cases = [convert(item["case"], Case).identity() for item in found["cases"]]
    by_verdict: dict[str, list[str]] = {}
    for case, item in zip(cases, found["cases"], strict=True):
        by_verdict.setdefault(item["result"]["verdict"], []).append(digest_json(case)[:_DIGITS])
    digest = digest_json(cases)
    return {**found["summary"], "cases_digest": digest, "case_verdicts": by_verdict}


def compare_summaries(
    dtype: str, old: Mapping[str, Json] | None, new: Mapping[str, Json], threshold: float
) -> list[dict[str, Json]]:
    """Return the difference between two summaries of one dtype as a list of at most one item.

    If `old` is None, the item has the kind ``new``.

    If both summaries have the same cases, a changed overall verdict is a ``regression`` if it was
    ``passed`` before, an ``improvement`` if it is ``passed`` now, and else a ``change``. A case
    that passed, and that now fails or ends in an error, makes the item a ``regression``, too. If
    the overall verdict stayed ``passed``, the largest errors are compared. An error that grew by
    more than the fraction `threshold` is a ``growth``, and one that shrank in the same proportion
    is an ``improvement``.

    If the cases differ, only the verdicts on common cases are compared:

    - The item is a ``regression`` if a common case passed, and now fails or ends in an error.
    - Else it is an ``improvement`` if a common case failed or ended in an error before and passes
      now, and if no common case fails or ends in an error now.
    - Else it is a ``change``, and says only that the cases differ.
    """

    def change(kind: str, what: str, before: Json, after: Json) -> list[dict[str, Json]]:
        return [{"kind": kind, "dtype": dtype, "what": what, "old": before, "new": after}]

    if old is None:
        return change("new", "op", None, new["verdict"])
    broken, mended, wrong = _case_changes(old, new)
    if old.get("cases_digest") != new["cases_digest"]:
        if broken:
            return change("regression", stages.CASE_VERDICT, *broken)
        if mended and not wrong:
            return change("improvement", stages.CASE_VERDICT, *mended)
        return change("change", stages.OTHER_CASES, old.get("cases"), new.get("cases"))
    if broken and old["verdict"] != Verdict.PASSED.value:
        return change("regression", stages.CASE_VERDICT, *broken)
    kind, what = _kind_of_change(old, new, threshold)
    return change(kind, what, old[what], new[what]) if kind else []


def _kind_of_change(
    old: Mapping[str, Json], new: Mapping[str, Json], threshold: float
) -> tuple[str, str]:
    """Compare two results on the same cases."""
    passed = Verdict.PASSED.value
    if old["verdict"] != new["verdict"]:
        kind = "improvement" if new["verdict"] == passed else "change"
        return "regression" if old["verdict"] == passed else kind, "verdict"
    if new["verdict"] != passed:
        return "", ""
    before, after = float(old["max_abs"]), float(new["max_abs"])
    if not after <= before * (1 + threshold) + _ABSOLUTE_SLACK:
        return "growth", "max_abs"
    shrunk = after < before / (1 + threshold) - _ABSOLUTE_SLACK
    return ("improvement", "max_abs") if shrunk else ("", "")


def _case_changes(
    old: Mapping[str, Json], new: Mapping[str, Json]
) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Compare the verdicts on the cases that two summaries have in common."""
    before, after = _by_case(old), _by_case(new)
    pairs = {(before[case], after[case]) for case in before.keys() & after.keys()}
    bad = [verdict.value for verdict in BAD]
    passed = Verdict.PASSED.value
    worst = [pair for verdict in bad for pair in sorted(pairs) if verdict in pair]
    broken = next((pair for pair in worst if pair[0] == passed), ())
    mended = next((pair for pair in worst if pair[1] == passed), ())
    return broken, mended, any(verdict in bad for _, verdict in pairs)


def _by_case(summary: Mapping[str, Json]) -> dict[str, str]:
    """Map the digest of each case in a summary to its verdict; {} for a summary without cases."""
    found = summary.get("case_verdicts", {})
    return {case: verdict for verdict, cases in found.items() for case in cases}


# What the ``diff`` of a kernel needs, too.


def read_previous(cache: WorkspaceCache, spec: TaskSpec) -> dict[str, Json]:
    """Return the state in a task's last result; {} if the result is missing or invalid."""
    last = cache.state.get(RESULT + spec.name)
    found = last.get("current") if isinstance(last, dict) else None
    return found if isinstance(found, dict) else {}


def result_of(
    stage: str,
    current: Mapping[str, Json],
    previous: Mapping[str, Json],
    changes: Sequence[Mapping[str, Json]],
) -> dict[str, Json]:
    """Return the result of a ``diff`` stage."""
    return {
        "stage": stage,
        "version": stages.VERSIONS[stage],
        "current": current,
        "previous": previous,
        "changes": changes,
    }
