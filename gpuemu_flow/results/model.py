"""One result model for every writer: what a run found, per op and dtype, and each failing case."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from gpuemu_flow.cases.cause import Cause
from gpuemu_flow.errors import Problem, StoreError
from gpuemu_flow.kernel_findings import CodePlace
from gpuemu_flow.store.workspace_cache import WorkspaceCache
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import TaskSpec, read_manifest
from gpuemu_flow.types import Case, CheckResult, Json, Verdict, number_from_json

SCHEMA_VERSION = 1


class Absence(str, Enum):
    """Why something that is configured was not looked at."""

    NONE = ""
    UNABLE = "unable"
    """There is no tool or program for it, or too little of it was judged."""
    CUT_OFF = "cut off"
    """The run's time limit came first."""
    LEFT_OUT = "left out"
    """It was not asked for."""


@dataclass(frozen=True)
class CaseFailure:
    """A case that did not pass."""

    op: str
    case: Case
    result: CheckResult

    @property
    def source(self) -> CodePlace | None:
        """The line of a kernel's source that is at fault, where a check of the kernel found it."""
        for failure in self.result.failures[:1]:
            if failure.finding is not None and failure.finding.place.is_inside:
                return failure.finding.place
        return None

    @property
    def reproduce(self) -> str:
        """The command that runs this case again."""
        words = [str(self.case.seed), "--op", self.op, "--case", self.case.to_text()]
        return f"gpuemu-flow reproduce {shlex.join(words)}"


STANDING = frozenset(
    ("untracked-inputs", "loose-tolerance", "constant-reference", "causes-cut-short")
)
"""Warnings that belong to results: each report shows them again, in whatever format."""


@dataclass(frozen=True)
class OpResult:
    """All cases of one op and dtype.

    Attributes
    ----------
    op, dtype : str
    verdict : Verdict
    cases, passed, failed, inconclusive, errors, skipped : int
        Numbers of cases.
    max_abs, max_rel, max_ulp : float
        Worst over all cases.
    tolerance_used : float
        Largest share of the tolerance that an element used; 1.0 is just allowed.
    unjudged : float
        Share of all output elements without a verdict.
    duration_s : float
        Seconds that running and comparing took when it was really done.
    cached : bool
        Nothing of it was executed in this run.
    reason : str
        Why it was skipped, or has no verdict.
    failures : tuple of CaseFailure
        Smallest first.
    passing : tuple of Case
        What failures are compared with to find their cause.
    absence : Absence
        Why it was not looked at, where a run says more than that it was skipped.
    loose : tuple of str
        Outputs whose explicit tolerance lets zeros pass in every case.
    constant : tuple of (str, float)
        Outputs that are expected to have one and the same value in every case.
    causes : tuple of Cause
        Of the failures of the op in all its dtypes; stated ones first.
    """

    op: str
    dtype: str
    verdict: Verdict
    cases: int = 0
    passed: int = 0
    failed: int = 0
    inconclusive: int = 0
    errors: int = 0
    skipped: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float = 0.0
    tolerance_used: float = 0.0
    unjudged: float = 0.0
    duration_s: float = 0.0
    cached: bool = False
    reason: str = ""
    failures: tuple[CaseFailure, ...] = ()
    passing: tuple[Case, ...] = ()
    causes: tuple[Cause, ...] = ()
    absence: Absence = Absence.NONE
    loose: tuple[str, ...] = ()
    constant: tuple[tuple[str, float], ...] = ()

    @property
    def absent(self) -> Absence:
        """Why there is no verdict on it, if there is none."""
        return _absence(self.verdict, self.absence)

    def weaknesses(self) -> Iterator[Problem]:
        """Warn of comparisons that say less than they seem to."""
        for name in self.loose:
            message = f"the tolerance is larger than all that it judges: zeros for {name!r} pass"
            hint = 'give a smaller one, or `tolerance = "auto"`'
            yield self._warning("loose-tolerance", message, hint)
        for name, value in self.constant:
            message = f"the reference gives {value:g} for {name!r} in every case"
            hint = "whatever always gives that passes; look whether it is meant"
            yield self._warning("constant-reference", message, hint)

    def _warning(self, slug: str, message: str, hint: str) -> Problem:
        return Problem(slug, f"{self.op} {self.dtype}: {message}", hint, warning=True)


def _absence(verdict: Verdict, told: Absence) -> Absence:
    if told is Absence.NONE and verdict in (Verdict.SKIPPED, Verdict.INCONCLUSIVE):
        return Absence.UNABLE
    return told


@dataclass(frozen=True)
class KernelResult:
    """The lint of one configured kernel for one architecture.

    Attributes
    ----------
    kernel, arch : str
        As configured; the architecture is empty when the artifact decides it.
    verdict : Verdict
        ``failed`` with a violation of severity error that nothing allows.
    reason : str
        Why it was skipped or could not be linted.
    cached : bool
        Neither built nor linted in this run.
    entries : tuple of mapping
        Each kernel of the artifact in the form that ``lint`` shows.
    changes : tuple of mapping
        What changed since the run before: kernel, arch, kind, metric, message.
    absence : Absence
        As of an `OpResult`.
    """

    kernel: str
    arch: str
    verdict: Verdict
    reason: str = ""
    cached: bool = False
    entries: tuple[Mapping[str, Json], ...] = ()
    changes: tuple[Mapping[str, Json], ...] = ()
    absence: Absence = Absence.NONE

    @property
    def absent(self) -> Absence:
        """Why there is no verdict on it, if there is none."""
        return _absence(self.verdict, self.absence)


@dataclass(frozen=True)
class TaskCounts:
    """How many tasks ended how."""

    total: int = 0
    current: int = 0
    ran: int = 0
    restored: int = 0
    failed: int = 0
    skipped: int = 0


@dataclass(frozen=True)
class RunReport:
    """What `gpuemu-flow run` says, as data."""

    tasks: TaskCounts
    executed: tuple[str, ...]
    results: tuple[OpResult, ...]
    problems: tuple[Problem, ...] = ()
    changes: tuple[Mapping[str, Json], ...] = ()
    duration_s: float = 0.0
    interrupted: bool = False
    kernels: tuple[KernelResult, ...] = ()

    @property
    def failures(self) -> list[CaseFailure]:
        """Every failing case, in the order of the results."""
        return [failure for result in self.results for failure in result.failures]

    @property
    def exit_code(self) -> int:
        """0 passed, 1 a check failed, 3 something crashed, 4 nothing validated, 130 interrupted."""
        verdicts = {result.verdict for result in self.results}
        verdicts |= {kernel.verdict for kernel in self.kernels}
        if self.interrupted:
            return 130
        if Verdict.FAILED in verdicts:
            return 1
        if Verdict.ERROR in verdicts or any(not p.warning for p in self.problems):
            return 3
        return 0 if Verdict.PASSED in verdicts else 4


@dataclass
class ReportBuilder:
    """Reads manifests into a `RunReport`.

    Attributes
    ----------
    cache : WorkspaceCache
    tasks : mapping of name to TaskSpec
    status : mapping of name to str
        What the run did with each task.
    values : callable
        Stored facts of a task (durations), by name.
    relocate : callable
        From a comparison and a case's result to the result with the lines of findings as they are
        now.
    """

    cache: WorkspaceCache
    tasks: Mapping[str, TaskSpec]
    status: Mapping[str, str]
    records: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    relocate: Callable[[TaskSpec, CheckResult], CheckResult] = lambda _, result: result

    def op_result(self, compare: TaskSpec) -> OpResult | None:
        """The result of one op and dtype, or None when its comparison never ended."""
        try:
            manifest = read_manifest(self.cache.folder / compare.target, "compare")
        except StoreError:
            return None
        summary = manifest["summary"]
        sources = [compare.name, *(i.task for i in compare.inputs)]
        failures, passing = [], []
        for item in manifest["cases"]:
            if item["result"]["verdict"] == Verdict.PASSED.value:
                passing.append(item["case"])
            elif item["result"]["verdict"] != Verdict.SKIPPED.value:
                case = Case.from_json(item["case"])
                result = self.relocate(compare, CheckResult.from_json(item["result"]))
                failures.append(CaseFailure(compare.subject, case, result))
        return OpResult(
            op=compare.subject,
            dtype=compare.dtype,
            verdict=Verdict(summary["verdict"]),
            cases=summary["cases"],
            passed=summary["passed"],
            failed=summary["failed"],
            inconclusive=summary["inconclusive"],
            errors=summary["errors"],
            skipped=summary["skipped"],
            max_abs=number_from_json(summary["max_abs"]),
            max_rel=number_from_json(summary["max_rel"]),
            max_ulp=number_from_json(summary["max_ulp"]),
            tolerance_used=number_from_json(summary["tolerance_used"]),
            unjudged=summary.get("unjudged", 0.0),  # an older version's says nothing of it
            reason=summary.get("reason", ""),
            duration_s=sum(self.records.get(m, {}).get("duration_s", 0.0) for m in sources),
            cached=not any(self.status.get(m) == "ran" for m in sources),
            loose=tuple(summary.get("loose", ())),
            constant=tuple(sorted(summary.get("constant", {}).items())),
            failures=tuple(sorted(failures, key=lambda f: f.case.numel)),
            passing=tuple(Case.from_json(case) for case in passing) if failures else (),
        )

    def kernel_result(self, lint: TaskSpec) -> tuple[KernelResult, list[Problem]] | None:
        """The result of one lint and its problems, or None when it never ended."""
        try:
            manifest = read_manifest(self.cache.folder / lint.target, stages.LINT)
        except StoreError:
            return None
        problems = [Problem(**problem) for problem in manifest["problems"]]
        verdict = Verdict(manifest["verdict"])
        reason = manifest["skipped"]
        if verdict is Verdict.ERROR:
            errors = [problem.message for problem in problems if not problem.warning]
            reason = errors[0] if errors else "no kernel in it"
        sources = [lint.name, *(i.task for i in lint.inputs)]
        result = KernelResult(
            kernel=lint.subject,
            arch=manifest["arch"],
            verdict=verdict,
            reason=reason,
            cached=not any(self.status.get(m) in ("ran", "restored") for m in sources),
            entries=tuple(manifest["kernels"]),
            changes=tuple(self._kernel_changes(lint)),
        )
        return result, problems

    def build_problems(self, build: TaskSpec) -> list[Problem]:
        """Return what a build says of its source."""
        if self.status.get(build.name) in ("failed", "pending"):
            return []
        try:
            manifest = read_manifest(self.cache.folder / build.target, stages.BUILD)
        except StoreError:
            return []
        return [Problem(**problem) for problem in manifest["problems"]]

    def _kernel_changes(self, lint: TaskSpec) -> list[dict[str, Json]]:
        """Return what this run's diff says of one architecture of a kernel."""
        found = []
        for spec in self.tasks.values():
            reads = any(source.task == lint.name for source in spec.inputs)
            if reads and self.status.get(spec.name) in ("ran", "restored"):
                manifest = read_manifest(self.cache.folder / spec.target, stages.KERNEL_DIFF)
                arch = lint.params["arch"]
                found += [c for c in manifest["changes"] if c["arch"] == arch or not arch]
        return found

    def changes(self, diffs: Iterable[TaskSpec]) -> list[dict[str, Json]]:
        """Differences that the ``diff`` tasks of this run found."""
        found = []
        for spec in diffs:
            if self.status.get(spec.name) in ("ran", "restored"):
                manifest = read_manifest(self.cache.folder / spec.target, "diff")
                found += [{"op": spec.subject, **change} for change in manifest["changes"]]
        return [change for change in found if change["kind"] != "new"]
