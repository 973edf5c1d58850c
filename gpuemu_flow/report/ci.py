"""Make a whole check for CI: select tasks, run them in limited time, compare with a baseline."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow import __version__
from gpuemu_flow.build import session
from gpuemu_flow.build.graph import Listener, code_digest, parting_commit
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
from gpuemu_flow.model.types import Json, Verdict
from gpuemu_flow.report import baselines, history
from gpuemu_flow.report.document import BaselineDiff, Report, ShardPart
from gpuemu_flow.report.gather import gather, repository
from gpuemu_flow.report.report import record_run, run_and_report
from gpuemu_flow.store.baselines import Baseline, BaselineStore, read_file
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import LintParams, params_of

if TYPE_CHECKING:
    from gpuemu_flow.build.graph import Shard
    from gpuemu_flow.build.session import RunOutcome

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
    conclude: Callable[[Workspace, RunOutcome, RunReport], None] = lambda *_: None,
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
    outcome: RunOutcome | None = None
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
