"""Build the report that all writers use, from the outcome of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from gpuemu_flow.build import session
from gpuemu_flow.build.graph import Listener, Skip, owned
from gpuemu_flow.build.session import RunOptions, RunOutcome
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cases.op_schema import OpSchema, untried_sizes
from gpuemu_flow.judge.results import (
    CaseVerdict,
    KernelChange,
    KernelResult,
    OpResult,
    ResultChange,
    RunReport,
    TaskCounts,
)
from gpuemu_flow.judge.verdicts import WORST
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import Problem, StoreError
from gpuemu_flow.model.types import DTYPES, Case, CheckResult, Json, Verdict, is_kept_finite
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import LintParams, OpParams, TaskSpec, params_of, read_result
from gpuemu_flow.workers.sightings import UNSEEN

_BUILDS = (stages.BUILD, stages.CODE, stages.RULE)

if TYPE_CHECKING:
    from gpuemu_flow.workers.pool import Pool

_FINISHED = ("ran", "restored", "current")


def result_of_summary(
    op: str, dtype: str, summary: Mapping[str, Json], *, reason: str | None = None, **more: Any
) -> OpResult:
    """Make the result of an op and dtype from the summary of its comparison."""
    counts = ("cases", "passed", "failed", "inconclusive", "errors", "skipped")
    worst: dict[str, Any] = {name: float(summary[name]) for name in WORST}
    return OpResult(
        op=op,
        dtype=dtype,
        verdict=Verdict(summary["verdict"]),
        **{name: summary[name] for name in counts},
        **worst,
        unjudged=summary.get("unjudged", 0.0),  # missing in summaries of older versions
        reason=summary.get("reason", "") if reason is None else reason,
        loose=tuple(summary.get("loose", ())),
        constant=tuple(sorted(summary.get("constant", {}).items())),
        **more,
    )


class ReportBuilder(Struct):
    """Reads results of tasks into a `RunReport`."""

    cache: WorkspaceCache
    tasks: Mapping[str, TaskSpec]
    status: Mapping[str, str]
    records: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    relocate: Callable[[TaskSpec, CheckResult], CheckResult] = lambda _, result: result
    lost: list[Problem] = field(default_factory=list)
    """The errors of comparisons with a baseline whose results cannot be read."""

    def op_result(self, compare: TaskSpec) -> OpResult | None:
        """Return the result of one op and dtype, or None if its comparison did not finish.

        If the comparison finished but its result cannot be read, the result is an error with the
        reason.
        """
        try:
            stored = read_result(self.cache, compare.name, "compare")
        except StoreError as error:
            if self.status.get(compare.name) not in _FINISHED:
                return None
            return OpResult(compare.subject, compare.dtype, Verdict.ERROR, reason=str(error))
        read = (i.task for i in compare.inputs if not stages.is_needed(i.role))
        sources = [compare.name, *read]
        failures, passing = [], []
        for item in stored["cases"]:
            if item["result"]["verdict"] == Verdict.PASSED.value:
                passing.append(item["case"])
            elif item["result"]["verdict"] != Verdict.SKIPPED.value:
                case = convert(item["case"], Case)
                result = self.relocate(compare, convert(item["result"], CheckResult, strict=False))
                failures.append(CaseVerdict(compare.subject, case, result))
        return result_of_summary(
            compare.subject,
            compare.dtype,
            stored["summary"],
            duration_s=sum(self.records.get(m, {}).get("duration_s", 0.0) for m in sources),
            cached=not any(self.status.get(m) == "ran" for m in sources),
            sandbox=self._sandbox_of(compare),
            failures=tuple(sorted(failures, key=lambda f: f.case.numel)),
            passing=tuple(convert(case, Case) for case in passing) if failures else (),
            kept_finite=_kept_finite(stored["cases"]),
            untried=self._untried(compare, stored["cases"]),
        )

    def _sandbox_of(self, compare: TaskSpec) -> str:
        for source in compare.inputs:
            if source.role == stages.OP and source.task in self.tasks:
                return str(params_of(OpParams, self.tasks[source.task].params).sandbox["level"])
        return ""

    def _untried(self, compare: TaskSpec, items: Sequence[Mapping[str, Json]]) -> tuple[str, ...]:
        """Return a text, such as ``N = 9, 11``, for each dim with sizes that no judged case had."""
        tasks = [self.tasks[i.task] for i in compare.inputs if i.task in self.tasks]
        made = next((spec for spec in tasks if spec.stage == stages.GENERATE), None)
        if made is None:
            return ()
        judged = [i for i in items if i["result"]["verdict"] != Verdict.SKIPPED.value]
        sizes = [dict(item["case"]["dims"]) for item in judged]
        return untried_sizes(convert(made.settings["schema"], OpSchema), sizes)

    def kernel_result(self, lint: TaskSpec) -> tuple[KernelResult, list[Problem]] | None:
        """Return the result of one lint and its problems; None if the lint did not finish."""
        from gpuemu_flow.lint.kernel import KernelRecord  # noqa: PLC0415 - few have kernels

        try:
            stored = read_result(self.cache, lint.name, stages.LINT)
        except StoreError as error:
            if self.status.get(lint.name) not in _FINISHED:
                return None
            arch = params_of(LintParams, lint.params).arch
            return KernelResult(lint.subject, arch, Verdict.ERROR, reason=str(error)), []
        problems = convert(stored["problems"], list[Problem])
        verdict = Verdict(stored["verdict"])
        reason = stored["skipped"]
        if verdict is Verdict.ERROR:
            errors = [problem.message for problem in problems if not problem.warning]
            reason = errors[0] if errors else "the artifact holds no kernel"
        sources = [lint.name, *(i.task for i in lint.inputs)]
        result = KernelResult(
            kernel=lint.subject,
            arch=stored["arch"],
            verdict=verdict,
            reason=reason,
            cached=not any(self.status.get(m) in ("ran", "restored") for m in sources),
            entries=convert(stored["kernels"], tuple[KernelRecord, ...]),
            changes=tuple(self._kernel_changes(lint)),
        )
        return result, problems

    def build_problems(self, build: TaskSpec) -> list[Problem]:
        """Return the problems that a build found; none if it did not finish."""
        if self.status.get(build.name) in ("failed", "pending"):
            return []
        try:
            stored = read_result(self.cache, build.name, stages.BUILD)
        except StoreError:
            return []
        return convert(stored["problems"], list[Problem])

    def _kernel_changes(self, lint: TaskSpec) -> list[KernelChange]:
        """Return the changes that this run's ``diff`` task found for the architecture of a lint."""
        found = []
        arch = params_of(LintParams, lint.params).arch
        for spec in self.tasks.values():
            reads = any(source.task == lint.name for source in spec.inputs)
            if reads and self.status.get(spec.name) in ("ran", "restored"):
                found += convert(self._changes_of(spec), list[KernelChange])
        return [change for change in found if change.arch == arch or not arch]

    def changes(self, diffs: Iterable[TaskSpec]) -> list[ResultChange]:
        """Return the differences that these ``diff`` tasks found in this run, except new ops."""
        found = []
        for spec in diffs:
            if self.status.get(spec.name) in ("ran", "restored"):
                changes = [{**change, "op": spec.subject} for change in self._changes_of(spec)]
                found += convert(changes, list[ResultChange])
        return [change for change in found if change.kind != "new"]

    def _changes_of(self, diff: TaskSpec) -> list[dict[str, Json]]:
        try:
            return list(read_result(self.cache, diff.name, diff.stage)["changes"])
        except StoreError as error:
            self.lost += error.problems
            return []


def _kept_finite(items: Sequence[Mapping[str, Json]]) -> tuple[str, ...]:
    """Return the names of inputs that never get NaN or Inf, although ``special`` was requested.

    Their range excludes NaN and Inf, which the strategy ``special`` would draw.
    """
    if not any(item["case"]["strategy"] == "special" for item in items):
        return ()  # that strategy was not requested
    specs = convert(items[0]["case"], Case).inputs
    return tuple(
        spec.name
        for spec in specs
        if is_kept_finite(DTYPES[spec.dtype].kind, spec.low, spec.high, spec.rule)
    )


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
        from gpuemu_flow.report.gather import Relocator  # noqa: PLC0415 - brings lint

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
