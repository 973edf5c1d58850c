"""Make reports: of a whole check for CI, and of the last results, without running anything."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow import __version__
from gpuemu_flow.build import session
from gpuemu_flow.build.graph import Listener, Shard, code_digest, parting_commit
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.causes import cause_budget, with_causes
from gpuemu_flow.judge.results import (
    Absence,
    KernelResult,
    OpResult,
    Regression,
    RunReport,
    TaskCounts,
)
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.types import BAD, Json, Verdict
from gpuemu_flow.report import baselines, history
from gpuemu_flow.report.document import BaselineDiff, Report, ShardPart
from gpuemu_flow.report.gather import gather, repository
from gpuemu_flow.report.inspect import known_report
from gpuemu_flow.report.report import item_of, record_run, run_and_report
from gpuemu_flow.store.baselines import Baseline, BaselineStore, read_file
from gpuemu_flow.store.failures import FailureRecord, FailureStore
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import LintParams, params_of

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
    baseline = _known_baseline(workspace, query.baseline)
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


def _known_baseline(workspace: Workspace, tag: str | None) -> Baseline | None:
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


# Make a whole check for CI: select tasks, run them in limited time, compare with a baseline.


QUICK = "quick"
THOROUGH = "thorough"


class ReportRequest(Struct, frozen=True):
    """A request for a report, as a command makes it."""

    words: tuple[str, ...] = ()
    quick: bool = False
    baseline: str | None = None
    jobs: int | None = None
    fail_on_regression: bool | None = None
    limited: bool = True
    pictures: bool = False
    require_all: bool = False
    confirm: bool = True
    since: str = ""
    shard: Shard | None = None

    @property
    def mode(self) -> str:
        """Return the name of the selection: ``quick``, ``all`` or the selected words."""
        return " ".join((*([QUICK] if self.quick else []), *self.words)) or "all"


def check(
    workspace: Workspace,
    request: ReportRequest,
    listener: Listener | None = None,
    environ: Mapping[str, str] = os.environ,
    announce: Callable[[str], None] = lambda _: None,
    conclude: Callable[[Workspace, session.RunOutcome, RunReport], None] = lambda *_: None,
) -> Report:
    """Bring the requested tasks up to date and report on them.

    Failing cases and the history are recorded.

    Raises UsageError: A word selects no task, or the baseline does not exist.
    """
    begin = time.perf_counter()
    baseline = _baseline(workspace, request.baseline)
    ci = workspace.config.ci
    limit = ci.thorough_timeout if request.limited and not request.quick else None
    options = session.RunOptions(
        words=() if request.words == (THOROUGH,) else request.words,
        jobs=request.jobs,
        time_limit=limit,
        since=request.since,
        shard=request.shard,
    )
    if options.jobs is None:
        options = replace(options, jobs=ci.parallel_jobs)
    outcome: session.RunOutcome | None = None
    if request.quick:
        run, timed_out = _quick(workspace, options, listener)
    else:
        outcome, run = run_and_report(workspace, options, listener)
        timed_out = outcome.timed_out
        if timed_out and limit is not None:
            run = _cut_off(run, outcome, limit)
    budget = cause_budget(workspace, confirm=request.confirm)
    if not timed_out:
        run = with_causes(workspace, run, budget=budget, announce=announce)
    run = replace(run, problems=(*run.problems, *record_run(workspace, run)))
    if run.failures:
        from gpuemu_flow.report.minimal import with_minima  # noqa: PLC0415 - brings numpy

        run = with_minima(workspace, run, search=not timed_out and budget > 0)
    if outcome is not None:
        conclude(workspace, outcome, run)
    if not history.ends_with(workspace.cache, run):
        history.append(workspace.cache, run)
    limited = bool(request.since) or request.shard is not None
    partial = bool(options.words) or request.quick or limited
    worse, shown = against(workspace, baseline, run, partial=partial)
    report = Report(
        run,
        mode=request.mode,
        baseline=shown,
        regressions=tuple(worse),
        fail_on_regression=_gate(workspace, request),
        timed_out=timed_out,
        require_all=request.require_all,
        shard=None if request.shard is None else _shard_part(workspace, request, options, environ),
    )
    report = gather(workspace, report, environ)
    if request.pictures and not run.interrupted:
        from gpuemu_flow.report.pictures import with_pictures  # noqa: PLC0415 - brings numpy

        report = with_pictures(workspace, report)
    workspace.cache.close()
    whole = replace(report.run, duration_s=time.perf_counter() - begin)
    return replace(report, run=whole)


def _quick(
    workspace: Workspace, options: session.RunOptions, listener: Listener | None
) -> tuple[RunReport, bool]:
    """Run the selected comparisons in the quick dtypes, and the selected lints."""
    graph, dtypes = workspace.graph, workspace.config.ci.quick_dtypes
    chosen = session.chosen_tasks(workspace, options)
    names = tuple(
        name
        for name, spec in graph.tasks.items()
        if name in chosen
        and (spec.stage == stages.LINT or (spec.stage == stages.COMPARE and spec.dtype in dtypes))
    )
    nothing = RunReport(TaskCounts(), (), (), nothing_due=options.may_be_nothing)
    run, timed_out = nothing, False
    if names:
        # Kernels have no dtype, so they are never left out.
        words = replace(options, dtypes=(*dtypes, ""))
        quick = replace(options, words=names)
        outcome, run = run_and_report(workspace, quick, listener, asked=words)
        timed_out = outcome.timed_out
    subjects = {graph.tasks[name].subject for name in chosen}
    limited = bool(options.words or options.since or options.shard)
    subjects |= set() if options.since or options.shard else set(options.words)
    known = {result.op for result in run.results}
    reason = f"not in the quick run, which checks {', '.join(dtypes)} only"
    left_out = tuple(
        OpResult(op.name, dtype, Verdict.SKIPPED, reason=reason, absence=Absence.LEFT_OUT)
        for op in workspace.config.ops
        if op.name not in known and (not limited or op.name in subjects)
        for dtype in op.dtypes
    )
    return replace(run, results=(*run.results, *left_out)), timed_out


def _baseline(workspace: Workspace, wanted: str | None) -> Baseline | None:
    if wanted is None:
        return None
    if wanted.endswith(".json") and Path(wanted).is_file():
        return read_file(Path(wanted))
    return BaselineStore(workspace.cache).comparable(wanted)


def _shard_part(
    workspace: Workspace,
    request: ReportRequest,
    options: session.RunOptions,
    environ: Mapping[str, str],
) -> ShardPart:
    """Describe a shard by what must be equal in the other ones; see `report.merging`."""
    assert request.shard is not None  # noqa: S101
    graph, snapshot = workspace.graph, workspace.snapshot
    drawn = workspace.settings.drawn_seed is not None
    top = repository(workspace.root, environ)
    given: dict[str, Json] = {
        "version of gpuemu-flow": __version__,
        "sources or settings": code_digest(graph, snapshot.files, top, drawn=drawn),
        "words": [request.mode, *options.words],
        "--since": parting_commit(workspace.root, options.since) if options.since else "",
        "--require-all": request.require_all,
        "--fail-on-regression": _gate(workspace, request),
        "--baseline": "" if request.baseline is None else Path(request.baseline).name,
        "quick": list(workspace.config.ci.quick_dtypes) if request.quick else [],
        "dtypes": list(options.dtypes),
        **dict(snapshot.basis.overrides),
    }
    chosen: set[str] = set()
    if not options.since:
        chosen = session.chosen_tasks(workspace, replace(options, shard=None))
    judged = (stages.COMPARE, stages.LINT)
    names = {graph.tasks[n].subject for n in chosen if graph.tasks[n].stage in judged}
    texts = {name: v if isinstance(v, str) else json.dumps(v) for name, v in given.items()}
    return ShardPart(request.shard.index, request.shard.count, texts, sorted(names))


def _gate(workspace: Workspace, request: ReportRequest) -> bool:
    if request.fail_on_regression is not None:
        return request.fail_on_regression
    return request.baseline is not None and workspace.settings.fail_on_regression


def _cut_off(run: RunReport, outcome: session.RunOutcome, limit: float) -> RunReport:
    """Mark as skipped the results of tasks that the time limit ended or kept from beginning."""
    ended = {name for name, status in outcome.status.items() if status in ("failed", "pending")}
    reason = f"cut off: the run took longer than ci.thorough_timeout, {limit:g} s"
    arches = {
        (spec.subject, params_of(LintParams, spec.params).arch)
        for name, spec in outcome.graph.tasks.items()
        if name in ended and spec.stage == stages.LINT
    }
    results = tuple(
        OpResult(r.op, r.dtype, Verdict.SKIPPED, reason=reason, absence=Absence.CUT_OFF)
        if f"{stages.COMPARE}:{r.op}:{r.dtype}" in ended
        else r
        for r in run.results
    )
    kernels = tuple(
        KernelResult(k.kernel, k.arch, Verdict.SKIPPED, reason=reason, absence=Absence.CUT_OFF)
        if (k.kernel, k.arch) in arches
        else k
        for k in run.kernels
    )
    absences = [r.absence for r in results] + [k.absence for k in kernels]
    count = absences.count(Absence.CUT_OFF)
    message = f"{count} results are missing: the run took longer than {limit:g} s"
    hint = "run again to continue where it stopped, or raise ci.thorough_timeout"
    problem = Problem("ci-time-limit", message, hint, warning=True)
    return replace(run, results=results, kernels=kernels, problems=(*run.problems, problem))


def against(
    workspace: Workspace, baseline: Baseline | None, run: RunReport, *, partial: bool
) -> tuple[list[Regression], BaselineDiff | None]:
    """Find regressions compared with a baseline or, without a baseline, with the last run."""
    if baseline is None:
        return _since_last_run(run), None
    found = baselines.diff(workspace, baseline, run)
    if partial:  # items that were not requested are not missing
        found.drop_missing()
    return found.regressions(), found


def _since_last_run(run: RunReport) -> list[Regression]:
    worse = [
        Regression(op=c.op, dtype=c.dtype, what=c.what, old=c.old, new=c.new)
        for c in run.changes
        if c.is_worse
    ]
    worse += [
        Regression(
            kernel=kernel.kernel,
            arch=c.arch,
            entry=c.kernel,
            what=c.metric,
            old=c.old,
            new=c.new,
            message=c.message,
        )
        for kernel in run.kernels
        for c in kernel.changes
        if c.is_worse
    ]
    return worse
