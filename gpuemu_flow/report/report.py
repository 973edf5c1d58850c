"""Build the report that all writers use, from the outcome of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuemu_flow.build import session
from gpuemu_flow.build.graph import Listener, Skip
from gpuemu_flow.build.selection import owned
from gpuemu_flow.build.session import RunOptions, RunOutcome
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.judge.results import (
    KernelResult,
    OpResult,
    RunReport,
    TaskCounts,
)
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.types import CheckResult, Json, Verdict
from gpuemu_flow.report.from_results import ReportBuilder
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import TaskSpec
from gpuemu_flow.tasks.params import LintParams, params_of
from gpuemu_flow.workers.sightings import UNSEEN

_BUILDS = (stages.BUILD, stages.CODE, stages.RULE)

if TYPE_CHECKING:
    from gpuemu_flow.workers.pool import Pool


def run_and_report(
    workspace: Workspace,
    options: RunOptions,
    listener: Listener | None = None,
    pool: Pool | None = None,
    *,
    asked: RunOptions | None = None,
) -> tuple[RunOutcome, RunReport]:
    """Call `session.run`, and build the report while the run still holds its lock."""
    reports: list[RunReport] = []

    def conclude(outcome: RunOutcome) -> None:
        shown = outcome if asked is None else replace(outcome, options=asked)
        reports.append(build_report(workspace, shown))

    outcome = session.run(workspace, options, listener, pool, conclude)
    return outcome, reports[-1]


def record_run(workspace: Workspace, report: RunReport) -> list[Problem]:
    """Record the failing cases of a run."""
    fresh = [r for r in report.results if r.failures and not r.cached]
    if not fresh:
        return []
    from gpuemu_flow.fuzz.failures import record_results  # noqa: PLC0415 - brings numpy

    return record_results(workspace, fresh)


def item_of(spec: TaskSpec) -> tuple[str, str]:
    """Return the op and dtype, or the kernel and architecture, that a task gives a verdict on."""
    if spec.stage == stages.LINT:
        return spec.subject, params_of(LintParams, spec.params).arch
    return spec.subject, spec.dtype


def build_report(
    workspace: Workspace,
    outcome: RunOutcome,
    *,
    broken: Collection[str] = (),
) -> RunReport:
    """Build the report of a run from the results of the selected tasks."""
    graph = outcome.graph
    selected = {n: spec for n, spec in graph.tasks.items() if n in outcome.selected}
    records = workspace.states().records(outcome.selected)
    values = {name: record.values for name, record in records.items()}
    builder = _builder(workspace, outcome, values)
    results: list[OpResult] = []
    for name, spec in selected.items():
        if spec.stage != stages.COMPARE:
            continue
        result = builder.op_result(spec)
        if result is not None and not (name in broken or _is_unfinished(outcome, name)):
            results.append(result)
        elif not outcome.interrupted or name in broken:
            reason = "its tasks did not finish; see the problems"
            results.append(OpResult(spec.subject, spec.dtype, Verdict.ERROR, reason=reason))
    kernels, kernel_problems = _kernels(builder, outcome, broken)
    skips = _selected_skips(workspace, outcome)
    unrun = [skip for skip in skips if skip.dtype]
    submitted: dict[tuple[str, str], OpResult] = {}
    if unrun:
        from gpuemu_flow.report.submissions import submitted_results  # noqa: PLC0415

        submitted = submitted_results(workspace, unrun)
    results += [
        submitted.get((s.op, s.dtype)) or OpResult(s.op, s.dtype, Verdict.SKIPPED, reason=s.reason)
        for s in unrun
    ]
    declared = {(s.op, s.dtype) for s in skips}
    results += [result for which, result in submitted.items() if which not in declared]
    judged = sum(bool(result.cases) for which, result in submitted.items() if which in declared)
    kernels += [
        KernelResult(s.op, "", Verdict.SKIPPED, reason=s.reason) for s in skips if not s.dtype
    ]
    counts = Counter(outcome.status.values())
    changes = builder.changes(_diffs(selected, outcome))
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
            *builder.lost,
            *_undeclared(selected, values),
            *untracked_inputs(workspace, outcome.selected),
            *(problem for result in results for problem in result.weaknesses()),
        ),
        changes=tuple(changes),
        duration_s=outcome.duration_s,
        interrupted=outcome.interrupted,
        kernels=tuple(kernels),
        drawn_seed=workspace.settings.drawn_seed,
        build_only=bool(selected)
        and not skips
        and all(spec.stage in _BUILDS for spec in selected.values()),
        nothing_due=outcome.options.may_be_nothing and not selected and not skips,
    )


def _builder(
    workspace: Workspace, outcome: RunOutcome, values: Mapping[str, Mapping[str, Json]]
) -> ReportBuilder:
    def relocate(compare: TaskSpec, result: CheckResult) -> CheckResult:
        if not any(failure.finding is not None for failure in result.failures):
            return result
        from gpuemu_flow.report.relocate import Relocator  # noqa: PLC0415 - brings lint

        return Relocator(workspace)(compare, result)

    tasks = outcome.graph.tasks
    return ReportBuilder(workspace.cache, tasks, outcome.status, values, relocate)


def _undeclared(
    tasks: Mapping[str, TaskSpec], values: Mapping[str, Mapping[str, Json]]
) -> list[Problem]:
    found: list[Problem] = []
    for name, spec in tasks.items():
        if spec.stage != stages.RULE:
            continue
        from gpuemu_flow.tasks.build_rule import undeclared_problems  # noqa: PLC0415

        found += undeclared_problems(spec, values.get(name, {}))
    return found


def _diffs(tasks: Mapping[str, TaskSpec], outcome: RunOutcome) -> Iterator[TaskSpec]:
    for name, spec in tasks.items():
        if spec.stage == stages.DIFF and outcome.status.get(name) in ("ran", "restored"):
            yield spec


def untracked_inputs(workspace: Workspace, tasks: Iterable[str]) -> list[Problem]:
    """Return the warnings about programs that may have used more inputs than were observed."""
    chosen, observed = set(tasks), workspace.snapshot.observed
    found: dict[str, dict[str, None]] = {}
    for name, outline in workspace.graph.tasks.items():
        if outline.stage in (stages.OP, stages.REFERENCE, stages.RULE) and name in chosen:
            for reason in observed.untracked(name):
                found.setdefault(reason, {})[f"{outline.stage} of {outline.subject}"] = None
    return [
        Problem(
            "untracked-inputs",
            f"{_few(list(programs))}: {reason}",
            "name the other files that they read with `depends`, those of a rule with `inputs`"
            + ("; see docs/caching.md#where-nothing-is-seen" if reason.startswith(UNSEEN) else ""),
            warning=True,
        )
        for reason, programs in sorted(found.items())
    ]


def _few(programs: Sequence[str]) -> str:
    more = len(programs) - 1
    return programs[0] + (f" and {more} more" if more else "")


def _is_unfinished(outcome: RunOutcome, name: str) -> bool:
    return outcome.status.get(name) in ("failed", "pending")


def _selected_skips(workspace: Workspace, outcome: RunOutcome) -> list[Skip]:
    """Return the selected ops and kernels that have no tasks in the graph."""
    words, dtypes = set(outcome.options.words), outcome.options.dtypes
    if outcome.options.until or outcome.options.since:  # skipped ops have no tasks to select
        return []
    shard = outcome.options.shard
    mine = None
    if shard is not None:
        mine = owned(outcome.graph, shard)
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
    results: list[KernelResult] = []
    problems: dict[Problem, None] = {}
    for name, spec in outcome.graph.tasks.items():
        if spec.stage not in (stages.BUILD, stages.LINT) or name not in outcome.selected:
            continue
        if spec.stage == stages.BUILD:
            problems.update(dict.fromkeys(builder.build_problems(spec)))
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
