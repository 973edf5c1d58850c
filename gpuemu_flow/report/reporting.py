"""Report the last results of a workspace, without running anything."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.causes import cause_budget, with_causes
from gpuemu_flow.judge.results import Absence, KernelResult, OpResult, RunReport
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.types import BAD, Verdict
from gpuemu_flow.report import history
from gpuemu_flow.report.ci import against
from gpuemu_flow.report.document import Report
from gpuemu_flow.report.gather import gather
from gpuemu_flow.report.inspect import known_report
from gpuemu_flow.report.report import item_of
from gpuemu_flow.store.baselines import Baseline, BaselineStore
from gpuemu_flow.store.failures import FailureRecord, FailureStore
from gpuemu_flow.tasks import stages

NEWEST = ""
MAX_HOURS = 24 * 365 * 100.0

R = TypeVar("R", OpResult, KernelResult)


class ReportQuery(Struct, frozen=True):
    """A query for a report of the last results."""

    since_hours: float | None = None
    lint: bool = False
    baseline: str | None = None


def current(workspace: Workspace, query: ReportQuery) -> Report:
    """Return the report of the last results, without running anything. Outdated results and items
    that were never checked are marked. Raises UsageError: ``unknown-baseline``."""
    baseline = _baseline(workspace, query.baseline)
    run, _, outdated = known_report(workspace)
    shown_stages = [stages.COMPARE, stages.LINT]
    if not query.lint and query.baseline is None:
        shown_stages, run = [stages.COMPARE], replace(run, kernels=())
    run = _with_gaps(workspace, run, outdated, shown_stages)
    run = with_causes(workspace, run, budget=cause_budget(workspace), known_only=True)
    if run.failures:
        from gpuemu_flow.report.minimal import with_minima  # noqa: PLC0415 - brings numpy

        run = with_minima(workspace, run, search=False)
    if query.since_hours is not None:
        run = _recent(workspace, run, query.since_hours)
    worse, shown = against(workspace, baseline, run, partial=True)
    report = Report(
        run,
        mode="report" if query.since_hours is None else f"last {query.since_hours:g} hours",
        baseline=shown,
        regressions=tuple(worse) if baseline is not None else (),
    )
    report = gather(workspace, report)
    report = replace(report, recorded=tuple(_recorded(workspace, report, query.since_hours)))
    workspace.cache.close()
    return report


def _recorded(workspace: Workspace, report: Report, hours: float | None) -> Iterator[FailureRecord]:
    """Yield the recorded failures that are not among the report's results, newest first."""
    begin = ""
    if hours is not None:
        moment = datetime.now(timezone.utc) - timedelta(hours=min(hours, MAX_HOURS))
        begin = moment.strftime("%Y-%m-%dT%H:%M:%S")
    shown = {report.key(failure) for failure in report.run.failures}
    records = sorted(FailureStore(workspace.cache), key=lambda r: r.time, reverse=True)
    for record in records:
        key = (record.op, record.seed, record.dtype)
        if record.time >= begin and not record.minimized_from and key not in shown:
            yield record


def _baseline(workspace: Workspace, tag: str | None) -> Baseline | None:
    if tag is None:
        return None
    known = BaselineStore(workspace.cache)
    return known.newest() if tag == NEWEST else known.comparable(tag)


def _with_gaps(
    workspace: Workspace, run: RunReport, outdated: set[str], shown: Sequence[str]
) -> RunReport:
    """Mark missing results, and outdated results that did not fail, as skipped. An outdated failure
    is kept, since it helps to fix the op or kernel; a note says that it is outdated."""
    specs = [spec for spec in workspace.graph.tasks.values() if spec.stage in shown]
    old = {item_of(spec) for spec in specs if spec.name in outdated}
    ops = {
        (r.op, r.dtype): _outdated(r, _unchecked_op(r.op, r.dtype)) if (r.op, r.dtype) in old else r
        for r in run.results
    }
    kernels = {
        (k.kernel, k.arch): _outdated(k, _unchecked_kernel(k.kernel, k.arch))
        if (k.kernel, k.arch) in old
        else k
        for k in run.kernels
    }
    problems = run.problems
    absences = [r.absence for r in ops.values()] + [k.absence for k in kernels.values()]
    count = absences.count(Absence.OUTDATED)
    if count:
        message = f"{count} of {len(ops) + len(kernels)} results are out of date"
        hint = "`gpuemu-flow run` checks what changed"
        problems = (*problems, Problem("report-out-of-date", message, hint, warning=True))
    for spec in specs:
        if spec.stage == stages.COMPARE:
            ops.setdefault(item_of(spec), _unchecked_op(*item_of(spec)))
        else:
            kernels.setdefault(item_of(spec), _unchecked_kernel(*item_of(spec)))
    return replace(
        run, results=tuple(ops.values()), kernels=tuple(kernels.values()), problems=problems
    )


def _unchecked_op(op: str, dtype: str) -> OpResult:
    return OpResult(op, dtype, Verdict.SKIPPED, reason="not checked yet")


def _unchecked_kernel(kernel: str, arch: str) -> KernelResult:
    return KernelResult(kernel, arch, Verdict.SKIPPED, reason="not checked yet")


def _outdated(result: R, unchecked: R) -> R:
    """Mark `result` as outdated and return it if it failed; else mark and return `unchecked`."""
    shown = result if result.verdict in BAD else unchecked
    return replace(shown, reason="changed since it was checked", absence=Absence.OUTDATED)


def _recent(workspace: Workspace, run: RunReport, hours: float) -> RunReport:
    """Mark ops' results as skipped unless they were checked or confirmed in the last `hours`."""
    begin = time.time() - hours * 3600
    seen = history.checked_since(workspace.cache, begin)
    states = workspace.states()
    for spec in workspace.graph.tasks.values():
        record = states.record(spec.name) if spec.stage == stages.COMPARE else None
        if record is not None and record.time >= begin:
            seen.add((spec.subject, spec.dtype))
    reason = f"not checked in the last {hours:g} hours"
    results = tuple(
        r
        if (r.op, r.dtype) in seen or r.verdict is Verdict.SKIPPED
        else OpResult(r.op, r.dtype, Verdict.SKIPPED, reason=reason)
        for r in run.results
    )
    return replace(run, results=results)
