"""Make the result model that all writers share from the outcome of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuemu_flow.engine import session
from gpuemu_flow.engine.events import Listener
from gpuemu_flow.engine.session import RunOptions, RunOutcome
from gpuemu_flow.engine.unordered import unordered
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import Problem
from gpuemu_flow.graph.graph import Skip
from gpuemu_flow.reporting.relocate import Relocator
from gpuemu_flow.reporting.renamed_submissions import take_over_submissions
from gpuemu_flow.reporting.submissions import submitted_results
from gpuemu_flow.results.from_manifests import ReportBuilder
from gpuemu_flow.results.model import (
    KernelResult,
    OpResult,
    RunReport,
    TaskCounts,
)
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import TaskSpec
from gpuemu_flow.tasks.params import LintParams, params_of
from gpuemu_flow.types import Json, Verdict

_BUILDS = (stages.BUILD, stages.CODE, stages.RULE)

if TYPE_CHECKING:
    from gpuemu_flow.runners.pool import Pool


def run_and_report(
    workspace: Workspace,
    options: RunOptions,
    listener: Listener | None = None,
    pool: Pool | None = None,
    *,
    asked: RunOptions | None = None,
) -> tuple[RunOutcome, RunReport]:
    """Run `session.run` and build its report, before another process may change the results.

    Parameters
    ----------
    asked : RunOptions, optional
        Options of the report, if it covers less than the run.
    """
    reports: list[RunReport] = []

    def conclude(outcome: RunOutcome) -> None:
        shown = outcome if asked is None else replace(outcome, options=asked)
        reports.append(build_report(workspace, shown))

    outcome = session.run(
        workspace,
        options,
        listener,
        pool,
        conclude,
        prepare=lambda: take_over_submissions(workspace),
    )
    return outcome, reports[0]


def known_report(workspace: Workspace) -> tuple[RunReport, set[str], set[str]]:
    """Build the report of all known results, without running anything.

    Returns
    -------
    report : RunReport
        An op is summarised by the same function as after a run. What was never checked is missing.
    stale, outdated : set of str
        Tasks that would run, and those of them for which something changed. The others are only
        tried again because they ended in an error.
    """
    graph, states = workspace.graph, workspace.states()
    stale = workspace.stale(set(graph.tasks))
    moved = {name for name in stale if states.moved(graph.tasks[name])}
    causes = {name: states.broken(graph.tasks[name]) for name in moved}
    broken = {name: why for name, why in causes.items() if why is not None}
    broken |= {name: [problem] for name, problem in unordered(workspace, graph.tasks).items()}
    outcome = RunOutcome(graph, RunOptions(), set(graph.tasks))
    outcome.status = {name: "current" for name in graph.tasks if name not in stale}
    outcome.problems = [problem for why in broken.values() for problem in why]
    # As after an interrupted run: results that are not there are no errors.
    outcome.interrupted = True
    report = build_report(workspace, outcome, broken=graph.downstream(set(broken)))
    outdated = graph.downstream(moved - set(broken)) - graph.downstream(set(broken))
    return replace(report, interrupted=False), stale, outdated


def build_report(
    workspace: Workspace, outcome: RunOutcome, *, broken: Collection[str] = ()
) -> RunReport:
    """Read the manifests of the selected tasks into one report.

    Parameters
    ----------
    broken : collection of str
        Tasks whose run made no target, if `outcome` does not list them.
    """
    graph = outcome.graph
    states = workspace.states()
    selected = [graph.tasks[name] for name in graph.tasks if name in outcome.selected]
    records = {}
    for spec in selected:
        record = states.record(spec.name)
        if record is not None:
            records[spec.name] = record.values
    relocate = Relocator(workspace)
    builder = ReportBuilder(workspace.cache, graph.tasks, outcome.status, records, relocate)
    results: list[OpResult] = []
    for spec in selected:
        if spec.stage == "compare":
            result = builder.op_result(spec)
            unfinished = spec.name in broken or _is_unfinished(outcome, spec.name)
            if result is not None and not unfinished:
                results.append(result)
            elif not outcome.interrupted or spec.name in broken:
                reason = "its tasks did not finish; see the problems"
                results.append(OpResult(spec.subject, spec.dtype, Verdict.ERROR, reason=reason))
    kernels, kernel_problems = _kernels(builder, outcome, broken)
    skips = _selected_skips(workspace, outcome)
    submitted = submitted_results(workspace, [skip for skip in skips if skip.dtype])
    results += [
        submitted.get((s.op, s.dtype)) or OpResult(s.op, s.dtype, Verdict.SKIPPED, reason=s.reason)
        for s in skips
        if s.dtype
    ]
    judged = sum(bool(result.cases) for result in submitted.values())
    kernels += [
        KernelResult(s.op, "", Verdict.SKIPPED, reason=s.reason) for s in skips if not s.dtype
    ]
    counts = Counter(outcome.status.values())
    return RunReport(
        tasks=TaskCounts(
            total=len(outcome.selected),
            current=counts["current"],
            ran=counts["ran"],
            restored=counts["restored"],
            failed=counts["failed"],
            skipped=len(skips) - judged + counts["pending"],
        ),
        executed=tuple(outcome.executed),
        results=tuple(results),
        problems=(
            *workspace.settings.warnings,
            *outcome.problems,
            *kernel_problems,
            *_undeclared(selected, records),
            *untracked_inputs(workspace, outcome.selected),
            *(problem for result in results for problem in result.weaknesses()),
        ),
        changes=tuple(builder.changes(s for s in selected if s.stage == "diff")),
        duration_s=outcome.duration_s,
        interrupted=outcome.interrupted,
        kernels=tuple(kernels),
        drawn_seed=workspace.settings.drawn_seed,
        build_only=bool(selected) and not skips and all(s.stage in _BUILDS for s in selected),
        nothing_due=outcome.options.may_be_nothing and not selected and not skips,
    )


def _undeclared(
    specs: Collection[TaskSpec], records: Mapping[str, Mapping[str, Json]]
) -> list[Problem]:
    """Return a warning for each rule that wrote, or deleted, more than it declares."""
    found = []
    for spec in specs if any(spec.stage == stages.RULE for spec in specs) else ():
        from gpuemu_flow.tasks.build_rule import deleted_problem, undeclared_problem  # noqa: PLC0415

        record = records.get(spec.name, {}) if spec.stage == stages.RULE else {}
        for kept, told in (("undeclared", undeclared_problem), ("deleted", deleted_problem)):
            if record.get(kept):
                found.append(told(spec, record[kept]))
    return found


def untracked_inputs(workspace: Workspace, tasks: Iterable[str]) -> list[Problem]:
    """Return a warning for each program that may have used more inputs than were observed."""
    chosen, observed = set(tasks), workspace.snapshot.observed
    found: dict[tuple[str, str, str], None] = {}
    for name, spec in workspace.graph.tasks.items():
        if name in chosen and spec.stage in (stages.OP, stages.REFERENCE):
            reasons = sorted(observed.names([name]).untracked)
            found.update(dict.fromkeys((spec.stage, spec.subject, reason) for reason in reasons))
    return [
        Problem(
            "untracked-inputs",
            f"{stage} of {subject}: {reason}",
            "name the other files that it reads with `depends`",
            warning=True,
        )
        for stage, subject, reason in found
    ]


def _is_unfinished(outcome: RunOutcome, name: str) -> bool:
    return outcome.status.get(name) in ("failed", "pending")


def _selected_skips(workspace: Workspace, outcome: RunOutcome) -> list[Skip]:
    """List the selected ops for which the graph has no tasks."""
    words, dtypes = set(outcome.options.words), outcome.options.dtypes
    if outcome.options.until or outcome.options.since:  # which name tasks, and those have none
        return []
    shard = outcome.options.shard
    mine = None
    if shard is not None:
        from gpuemu_flow.engine.shards import owned  # noqa: PLC0415 - seldom needed

        mine = owned(outcome.graph, workspace.root, shard)
    return [
        skip
        for skip in outcome.graph.skips
        if (not words or skip.op in words)
        and (not dtypes or skip.dtype in dtypes)
        and (mine is None or skip.op in mine)
    ]


def _kernels(
    builder: ReportBuilder, outcome: RunOutcome, broken: Collection[str]
) -> tuple[list[KernelResult], dict[Problem, None]]:
    """Return the lints of the selected kernels, with equal problems of architectures once."""
    results: list[KernelResult] = []
    problems: dict[Problem, None] = {}
    for name, spec in outcome.graph.tasks.items():
        if name in outcome.selected and spec.stage == stages.BUILD:
            problems.update(dict.fromkeys(builder.build_problems(spec)))
        if name not in outcome.selected or spec.stage != stages.LINT:
            continue
        unfinished = name in broken or _is_unfinished(outcome, name)
        found = None if unfinished else builder.kernel_result(spec)
        if found is not None:
            results.append(found[0])
            problems.update(dict.fromkeys(found[1]))
        elif not outcome.interrupted or name in broken:
            reason = "its tasks did not finish; see the problems"
            arch = params_of(LintParams, spec.params).arch
            results.append(KernelResult(spec.subject, arch, Verdict.ERROR, reason=reason))
    return results, problems
