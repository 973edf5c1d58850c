"""Results of ops that only clients run, from their submissions: their part of a run's report."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from datetime import datetime, timezone

from gpuemu_flow.engine.files import stamp_of
from gpuemu_flow.engine.graph import Skip
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import UsageError
from gpuemu_flow.fuzz.submitted_code import newest_of_each, of_current_code
from gpuemu_flow.fuzz.wire_ops import Query, Subjects, results_folder
from gpuemu_flow.judging.summary import WORST, tallied
from gpuemu_flow.results.from_manifests import result_of_summary
from gpuemu_flow.results.model import CaseFailure, OpResult
from gpuemu_flow.store.failures import FailureStore
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.store.results import FOLDER, STAMP, Judged, ResultStore, StoredResult
from gpuemu_flow.types import (
    BAD,
    Case,
    CheckResult,
    Json,
    Verdict,
    number_to_json,
)
from gpuemu_flow.verdicts import Tally


def submitted_results(
    workspace: Workspace, skips: Iterable[Skip]
) -> dict[tuple[str, str], OpResult]:
    """Return the results of skipped ops and dtypes for which clients submitted outputs.

    Only submissions count that were judged by the reference, the configuration and the environment
    as they are now, without a tolerance or arguments of their own, and whose code no newer state of
    it has retired; of each case and code, the newest.
    An op and dtype whose submissions are all older is skipped still, with a reason that says so.
    """
    found = {}
    for skip, valid, submitted in _submissions(workspace, skips):
        found[skip.op, skip.dtype] = (
            _result(workspace, skip, valid) if valid else _outdated(skip, submitted)
        )
    return found


def submitted_summaries(
    workspace: Workspace, results: Iterable[OpResult]
) -> dict[tuple[str, str], dict[str, Json]]:
    """Return the submissions that count, per op and dtype in the form of a comparison's summary.

    Parameters
    ----------
    results : iterable of OpResult
        Of a report; those that have tasks of their own are passed over.
    """
    judged = {(result.op, result.dtype): result for result in results if result.cases}
    skips = [skip for skip in workspace.graph.skips if (skip.op, skip.dtype) in judged]
    found = {}
    for skip, valid, _ in _submissions(workspace, skips):
        if valid:
            found[skip.op, skip.dtype] = {
                **_figures(valid),
                "cases_digest": digest_json(sorted(stored.seed for stored in valid)),
            }
    return found


def _submissions(
    workspace: Workspace, skips: Iterable[Skip]
) -> list[tuple[Skip, list[StoredResult], int]]:
    """Of each op and dtype with submissions: those that count, and how many there are."""
    skips = list(skips)
    if not skips:
        return []
    folder = results_folder(workspace.config, workspace.cache)
    # Looked at before the results are read: one that comes meanwhile is then seen next time.
    workspace.watch({str(folder / STAMP): stamp_of(folder / STAMP)})
    if not (folder / FOLDER).exists():
        return []
    store = ResultStore(workspace.cache, folder, max_results=0)
    try:
        latest = newest_of_each(of_current_code(store.everything()))
    finally:
        store.close()
    subjects = Subjects(workspace)
    found = []
    for skip in skips:
        stored = [s for s in latest if (s.op, s.dtype) == (skip.op, skip.dtype)]
        if stored:
            now = subjects.judged_by(Query(skip.op, skip.dtype, {}))
            workspace.watch(subjects.stamps(skip.op, skip.dtype))
            found.append((skip, [s for s in stored if s.judged_by == now], len(stored)))
    return found


def _outdated(skip: Skip, submitted: int) -> OpResult:
    reason = (
        f"{submitted} submissions, all judged by another reference or configuration than now; "
        "submit again"
    )
    return OpResult(skip.op, skip.dtype, Verdict.SKIPPED, reason=reason)


def _result(workspace: Workspace, skip: Skip, valid: list[StoredResult]) -> OpResult:
    figures = _figures(valid)
    failures = [_failure(workspace, stored) for stored in valid if stored.judged.verdict in BAD]
    return result_of_summary(
        skip.op,
        skip.dtype,
        figures,
        reason="; ".join(filter(None, (figures["reason"], _who_and_when(valid)))),
        cached=True,
        failures=tuple(
            sorted((f for f in failures if f is not None), key=lambda failure: failure.case.numel)
        ),
    )


def _who_and_when(valid: list[StoredResult]) -> str:
    """Say how many there are, when the last came, and from whom."""
    last = max(valid, key=lambda stored: stored.key)
    when = datetime.fromtimestamp(last.time_ns // 10**9, tz=timezone.utc)
    text = f"{len(valid)} submitted by clients, the last {when:%Y-%m-%d %H:%M:%S} UTC"
    client = last.client
    if not client:
        return f"{text} by a client that gave no name"
    place = ", ".join(
        f"{word} {client[key]}" for key, word in (("user", "user"), ("host", "host"))
        if client.get(key)
    )  # fmt: skip
    return f"{text} by {client.get('name', 'a client')} (pid {client.get('pid', '?')}, {place})"


def forget_submissions(workspace: Workspace, ops: Collection[str] | None = None) -> int:
    """Delete the submissions for some ops, for all by default, and count the results."""
    folder = results_folder(workspace.config, workspace.cache)
    if not (folder / FOLDER).exists():
        return 0
    store = ResultStore(workspace.cache, folder, max_results=0)
    try:
        return store.forget(ops)
    finally:
        store.close()


def _figures(valid: list[StoredResult]) -> dict[str, Json]:
    """Counts per verdict and the worst of each figure, as `tasks.summary.summarise` has them."""
    tally = Tally()
    for stored in valid:
        tally.count(stored.judged.verdict, stored.judged.elements)
    worst = {name: max(_figure(stored.judged, name) for stored in valid) for name in WORST}
    return {
        **tallied(tally),
        **{name: number_to_json(value) for name, value in worst.items()},
    }


def _figure(judged: Judged, name: str) -> float:
    """Return a figure, in which NaN is the worst there is."""
    value = float(getattr(judged, name))
    return math.inf if math.isnan(value) else value


def _failure(workspace: Workspace, stored: StoredResult) -> CaseFailure | None:
    """Return the recorded failure that a submission became; None when it was deleted since."""
    try:
        known = FailureStore(workspace.cache).get(stored.judged.failure_id)
    except UsageError:
        return None
    return CaseFailure(stored.op, Case.from_json(known.case), CheckResult.from_json(known.result))
