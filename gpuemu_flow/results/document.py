"""The content of a report as data, which writers only have to format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.results.baseline_diff import BaselineDiff
from gpuemu_flow.results.causes import causes
from gpuemu_flow.results.model import MISSED, Absence, CaseFailure, OpResult, RunReport
from gpuemu_flow.results.regressions import Regression
from gpuemu_flow.store.failure_record import FailureRecord
from gpuemu_flow.types import Case, CheckResult, Json, Verdict

REPORT_VERSION = 1
NOTHING_TO_DO = "nothing to do"
"""Verdict of a report on a set or a shard that contains no task."""


@dataclass(frozen=True)
class FileLine:
    """A location: a file relative to the repository, and a 1-based line."""

    file: str
    line: int = 1


@dataclass(frozen=True)
class CaseVerdict:
    """One case and its verdict, whether it passed or not."""

    op: str
    case: Case
    result: CheckResult

    @property
    def name(self) -> str:
        """Return ``op[dtype-shape-layout-strategy-seed]``, which is unique among an op's cases."""
        case = self.case
        shape = ",".join("x".join(map(str, i.shape)) or "scalar" for i in case.inputs)
        return f"{self.op}[{case.dtype}-{shape}-{case.layout}-{case.strategy}-{case.seed}]"

    @property
    def failure(self) -> CaseFailure:
        """Return the case as a `CaseFailure`, the form in which a run lists its failures."""
        return CaseFailure(self.op, self.case, self.result)


@dataclass(frozen=True)
class KnownFailure:
    """The record of a failing case in the store of failures.

    Attributes
    ----------
    id : str
    time : str
        The time at which the failure was last seen.
    minimized : FailureRecord or None
        The smallest case found that fails in the same way; None if none was searched for.
    """

    id: str
    time: str = ""
    minimized: FailureRecord | None = None


@dataclass(frozen=True)
class Picture:
    """Figures from which a failing output is drawn.

    Attributes
    ----------
    output : str
    shape : tuple of int
    rows : tuple of str
        Map of the errors in the output, folded to two dims. Each character stands for a cell, and
        shows the largest share of the tolerance that an element of the cell uses; see `LEVELS`.
    fold : str
        Description of how the tensor's dims were folded.
    scatter : tuple of (int, int, int, int)
        Numbers of elements by magnitude and error. The numbers of an item are, in order:
        ``floor(2 log10 m)`` for an expected magnitude m, ``floor(2 log10 e)`` for an error e, the
        number of elements with these two values, and the number of failing elements among them.
    histogram : tuple of int
        Numbers of elements by the share of the tolerance that they use; see `SHARES`.
    elements, failing : int
    inputs : mapping of str to str
        Values of the smallest inputs with which the case fails, as text.
    note : str
        Reason why there is no picture; empty if there is one.
    """

    output: str = ""
    shape: tuple[int, ...] = ()
    rows: tuple[str, ...] = ()
    fold: str = ""
    scatter: tuple[tuple[int, int, int, int], ...] = ()
    histogram: tuple[int, ...] = ()
    elements: int = 0
    failing: int = 0
    inputs: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


SHARES = (0.0, 1e-3, 0.01, 0.1, 0.25, 0.5, 1.0, 2.0, 10.0, 100.0, 1000.0)
"""Upper ends of the histogram's bars; a last bar counts everything above, including NaN and Inf."""

LEVELS = {
    "0": "exact",
    "1": "up to 10 % of the tolerance",
    "2": "up to 50 %",
    "3": "up to 100 %",
    "4": "up to 10 x the tolerance",
    "5": "up to 1000 x",
    "6": "beyond, NaN or Inf",
}
"""Meaning of each character in a row of a heat map; 4 and above stand for failures."""


@dataclass(frozen=True)
class HistoryPoint:
    """A run's result for one op and dtype: Unix time in s, verdict, worst absolute error."""

    time: float
    op: str
    dtype: str
    verdict: str
    max_abs: float
    tolerance_used: float


@dataclass(frozen=True)
class TaskState:
    """A task of the graph, and its status after the run.

    Attributes
    ----------
    name, stage, subject : str
    part : str
        Dtype or architecture; empty for tasks of a whole op or kernel.
    status : str
        ``current``, ``ran``, ``restored``, ``failed`` or ``pending``; empty without a run.
    """

    name: str
    stage: str
    subject: str
    part: str = ""
    status: str = ""


@dataclass(frozen=True)
class MissingVerdict:
    """A requested item that has no verdict.

    Attributes
    ----------
    what : str
        An op and dtype, or a kernel and architecture.
    reason : str
    absence : Absence
    """

    what: str
    reason: str
    absence: Absence

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON."""
        return {"what": self.what, "reason": self.reason, "absence": self.absence.value}


@dataclass(frozen=True)
class ShardPart:
    """The part of a workspace that a report covers.

    Attributes
    ----------
    index, count : int
        Number of the part, counted from 1, and number of all parts.
    split : str
        Digest of the assignment of all ops, kernels and rules to shards.
    settings : mapping of str to str
        For each op, also of other shards, a digest of its cases and of the settings that judge
        them.
    code : mapping of str to str
        For each op, kernel and rule, also of other shards, a digest of its sources.
    options : mapping of str to str
        Values of the options that decide which items are selected, or which exit code results.
    selected : tuple of str
        The ops and kernels that these options select in all shards together. Empty if one of the
        options is ``--since``: what this option selects depends on which programs have run on the
        machine, so shards can differ.
    """

    index: int
    count: int
    split: str
    settings: Mapping[str, str]
    code: Mapping[str, str]
    options: Mapping[str, str]
    selected: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """Everything that a report shows.

    Attributes
    ----------
    run : RunReport
    project, project_version : str
    mode : str
        ``all``, ``quick``, ``thorough`` or the words that selected the tasks.
    created : str
        Time of creation: UTC, ISO 8601, to the second.
    version : str
        The tool's version.
    cases : tuple of CaseVerdict
        Every case of every op that was checked.
    places : mapping of str to FileLine
        The location of each op.
    kernel_places : mapping of str to FileLine
        The location of each configured kernel.
    prefix : str
        Path of the workspace in the repository; empty if it is the repository's root.
    known : mapping of (str, int, str) to KnownFailure
        Recorded failures by op, seed and dtype.
    baseline : mapping or None
        The data of ``diff --format json``; None if no baseline was requested.
    recorded : tuple of mapping
        Records of failures that are not in this run's results: those found by fuzzing or by
        clients, and those that were fixed since.
    regressions : tuple of Regression
        One for each figure or verdict that got worse.
    fail_on_regression : bool
    timed_out : bool
        True if a time limit cut something off.
    require_all : bool
        True if the report is no success while any requested item lacks a verdict. If False, the
        report can be a success even then, but not if there were items to check and none passed.
    tasks : tuple of TaskState
        In graph order.
    edges : tuple of (str, str)
        Pairs of tasks; the second task of a pair reads the manifest of the first.
    pictures : mapping of (str, int, str) to Picture
        Drawings by op, seed and dtype.
    history : tuple of HistoryPoint
        Oldest first.
    shard : ShardPart or None
        The part of the workspace that the report covers; None for the whole workspace.
    """

    run: RunReport
    project: str = ""
    project_version: str = ""
    mode: str = "all"
    created: str = ""
    version: str = ""
    cases: tuple[CaseVerdict, ...] = ()
    places: Mapping[str, FileLine] = field(default_factory=dict)
    kernel_places: Mapping[str, FileLine] = field(default_factory=dict)
    prefix: str = ""
    known: Mapping[tuple[str, int, str], KnownFailure] = field(default_factory=dict)
    baseline: BaselineDiff | None = None
    recorded: tuple[FailureRecord, ...] = ()
    regressions: tuple[Regression, ...] = ()
    fail_on_regression: bool = False
    timed_out: bool = False
    require_all: bool = False
    tasks: tuple[TaskState, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()
    pictures: Mapping[tuple[str, int, str], Picture] = field(default_factory=dict)
    history: tuple[HistoryPoint, ...] = ()
    shard: ShardPart | None = None

    def place_of(self, failure: CaseFailure) -> FileLine | None:
        """Return the location of a failure: the line that a kernel check found, or else the op's.

        Return None if both are unknown.
        """
        found = failure.source
        if found is None or found.file.startswith("/"):
            return self.places.get(failure.op)
        return FileLine(f"{self.prefix}/{found.file}" if self.prefix else found.file, found.line)

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command that made the report.

        This is the run's exit code, with three exceptions. It is 1 if there is a regression and
        regressions make the report fail. It is 124 if a time limit cut something off, unless
        something had failed before. It is 4 if a required verdict is missing.
        """
        code = self.run.exit_code
        if code in (0, 3, 4) and self.fail_on_regression and self.regressions:
            return 1
        if self.timed_out and code in (0, 4):
            return 124
        whole = Verdict.PASSED in self.run.verdicts and not self.missing
        return 4 if code == 0 and self.require_all and not whole else code

    @property
    def missing(self) -> tuple[MissingVerdict, ...]:
        """Return all requested items without a verdict, those cut off by a time limit first."""
        every = [
            *(
                MissingVerdict(f"{r.op} {r.dtype}".strip(), r.reason, r.absent)
                for r in self.run.results
            ),
            *(
                MissingVerdict(f"kernel {k.kernel} {k.arch}".strip(), k.reason, k.absent)
                for k in self.run.kernels
            ),
        ]
        found = [one for one in every if one.absence in MISSED]
        return tuple(sorted(found, key=lambda missing: missing.absence is not Absence.CUT_OFF))

    @property
    def verdict(self) -> str:
        """Return the verdict on the report in a few words, for a heading."""
        if self.exit_code in (0, 4) and self.run.had_nothing_to_do:
            return NOTHING_TO_DO
        if self.exit_code == 4:
            passed = Verdict.PASSED in self.run.verdicts
            return "not all validated" if passed else "nothing validated"
        words = {0: "passed", 1: "failed", 124: "timed out", 130: "interrupted"}
        return words.get(self.exit_code, "error")

    @property
    def totals(self) -> dict[str, int]:
        """Count cases and kernels by verdict.

        If an op has no cases in a dtype, the verdict on the op in this dtype is counted once.
        """
        found = dict.fromkeys(("passed", "failed", "errors", "inconclusive", "skipped"), 0)
        plural = {Verdict.ERROR: "errors"}
        for result in self.run.results:
            if not result.cases:
                found[plural.get(result.verdict, result.verdict.value)] += 1
                continue
            for name in found:
                found[name] += getattr(result, name)
        for kernel in self.run.kernels:
            found[plural.get(kernel.verdict, kernel.verdict.value)] += 1
        return {"total": sum(found.values()), **found}

    def place_of_regression(self, worse: Regression) -> FileLine | None:
        """Return the location of the op or kernel of a regression; None if it is unknown."""
        places = self.kernel_places if worse.kernel else self.places
        return places.get(worse.kernel or worse.op)

    def key(self, failure: CaseFailure) -> tuple[str, int, str]:
        """Return the key of a failing case in `known` and `pictures`."""
        return failure.op, failure.case.seed, failure.case.dtype

    def worst_first(self) -> list[CaseFailure]:
        """Return the cases that did not pass, with the worst first.

        The first are wrong results, ordered by the share of the tolerance that they used. Then come
        cases that ended in an error, and then the rest.
        """
        order = {Verdict.FAILED: 0, Verdict.ERROR: 1}

        def rank(failure: CaseFailure) -> tuple[int, float, int]:
            used = failure.result.stats.tolerance_used
            wrong = math.inf if math.isnan(used) else used
            return order.get(failure.result.verdict, 2), -wrong, failure.case.numel

        return sorted(self.run.failures, key=rank)

    @cached_property
    def causes(self) -> Mapping[tuple[str, int, str], str]:
        """Map each failing case with a confirmed cause to a text about the cause."""
        by_op: dict[str, list[OpResult]] = {}
        for result in self.run.results:
            if result.failures:
                by_op.setdefault(result.op, []).append(result)
        return {
            self.key(failure): found.text
            for same in by_op.values()
            for found in causes(same)
            if found.cause is not None
            for failure in found.members
        }

    def representatives(self) -> list[CaseFailure]:
        """Return the worst case of each op, dtype and kind of failure, worst first."""
        found: dict[tuple[str, str, str], CaseFailure] = {}
        for failure in self.worst_first():
            found.setdefault((failure.op, failure.case.dtype, kind_of(failure)), failure)
        return list(found.values())


def kind_of(failure: CaseFailure) -> str:
    """Return the kind of a failing case's first failure; if there is none, the case's verdict."""
    first = failure.result.failures[0] if failure.result.failures else None
    return first.kind.value if first is not None else failure.result.verdict.value
