"""Read a run's results from those of its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from gpuemu_flow.cases.op_schema import OpSchema, untried_sizes
from gpuemu_flow.judge.results import (
    CaseVerdict,
    KernelChange,
    KernelResult,
    OpResult,
    ResultChange,
)
from gpuemu_flow.judge.verdicts import WORST
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import Problem, StoreError
from gpuemu_flow.model.types import (
    DTYPES,
    Case,
    CheckResult,
    Json,
    Verdict,
    is_kept_finite,
)
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import TaskSpec, read_result
from gpuemu_flow.tasks.params import LintParams, OpParams, params_of

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
