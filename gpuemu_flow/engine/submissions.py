"""Ops that only clients run, judged by what clients submitted: their part of a run's report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gpuemu_flow.engine.graph import Skip
from gpuemu_flow.engine.wire_ops import Asked, Subjects, results_folder
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.reports.model import OpResult
from gpuemu_flow.store.results import FOLDER, ResultStore, StoredResult
from gpuemu_flow.tasks.summary import overall
from gpuemu_flow.types import Verdict, number_from_json


def submitted_results(
    workspace: Workspace, skips: Iterable[Skip]
) -> dict[tuple[str, str], OpResult]:
    """Results of skipped ops and dtypes for which clients submitted outputs.

    Only submissions count that were judged by the reference, the configuration and the environment
    as they are now, without a tolerance or arguments of their own; of each case, the newest.
    An op and dtype whose submissions are all older is skipped still, with a reason that says so.
    """
    folder = results_folder(workspace.config, workspace.cache)
    if not (folder / FOLDER).exists():
        return {}
    store = ResultStore(workspace.cache, folder, max_results=0)
    try:
        latest = list(store.latest().values())
    finally:
        store.close()
    subjects = Subjects(workspace)
    found = {}
    for skip in skips:
        stored = [s for s in latest if (s.op, s.dtype) == (skip.op, skip.dtype)]
        if stored:
            now = subjects.judged_by(Asked(skip.op, skip.dtype, {}))
            valid = [s for s in stored if s.judged_by == now]
            found[skip.op, skip.dtype] = _summary(skip, valid, len(stored))
    return found


def _summary(skip: Skip, valid: list[StoredResult], submitted: int) -> OpResult:
    if not valid:
        reason = (
            f"{submitted} submissions, all judged by another reference or configuration than now; "
            "submit again"
        )
        return OpResult(skip.op, skip.dtype, Verdict.SKIPPED, reason=reason)
    counts = Counter(Verdict(s.result["verdict"]) for s in valid)
    return OpResult(
        skip.op,
        skip.dtype,
        overall(dict(counts)),
        cases=len(valid),
        passed=counts[Verdict.PASSED],
        failed=counts[Verdict.FAILED],
        inconclusive=counts[Verdict.INCONCLUSIVE],
        errors=counts[Verdict.ERROR],
        max_abs=max(float(s.result["max_diff"]) for s in valid),
        max_rel=max(float(s.result["max_rel_diff"]) for s in valid),
        tolerance_used=max(float(number_from_json(s.result["tolerance_used"])) for s in valid),
        cached=True,
        reason=f"{len(valid)} outputs that clients submitted",
    )
