"""The content of a report as data, which writers only have to format."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct, field

from gpuemu_flow.judge.results import MISSED, Absence, CaseVerdict, OpResult, Regression, RunReport
from gpuemu_flow.judge.verdicts import OUTSIDE, is_special, reason
from gpuemu_flow.model.types import FailureKind, Json, Verdict
from gpuemu_flow.model.verdicts import Cause, case_id

if TYPE_CHECKING:
    from gpuemu_flow.lint.diff import KernelDiff
    from gpuemu_flow.store.baselines import Baseline
    from gpuemu_flow.store.failures import FailureRecord


REPORT_VERSION = 1
NOTHING_TO_DO = "nothing to do"
"""Verdict of a report on a set or a shard that contains no task."""


class FileLine(Struct, frozen=True, array_like=True):
    """A location: a file relative to the repository, and a 1-based line."""

    file: str
    line: int = 1


class Picture(Struct, frozen=True):
    """Figures from which a failing output is drawn."""

    output: str = ""
    shape: tuple[int, ...] = ()
    # Map of the errors, folded to two dims as `fold` says. Each character stands for a cell: the
    # largest share of the tolerance that an element of the cell uses; see `LEVELS`.
    rows: tuple[str, ...] = ()
    fold: str = ""
    elements: int = 0
    failing: int = 0
    note: str = ""  # the reason why there is no picture


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


class MissingVerdict(Struct, frozen=True):
    """A requested item that has no verdict."""

    what: str
    reason: str
    absence: Absence


class ShardPart(Struct, frozen=True):
    """The part of a workspace that a report covers."""

    index: int  # counted from 1
    count: int
    # By name: what decides the selection, the verdicts or the exit code, as texts; all shards of
    # one run have the same.
    options: Mapping[str, str]
    # What these options select in all shards together. Empty with ``--since``, which depends on the
    # programs that have run on the machine, so that shards can differ.
    selected: Sequence[str]


class Report(Struct, frozen=True, dict=True):
    """Everything that a report shows."""

    run: RunReport
    project: str = ""
    project_version: str = ""
    mode: str = "all"  # or quick, thorough, or the words that selected the tasks
    created: str = ""  # UTC, ISO 8601, to the second
    version: str = ""
    cases: tuple[CaseVerdict, ...] = ()
    places: Mapping[str, FileLine] = field(default_factory=dict)
    kernel_places: Mapping[str, FileLine] = field(default_factory=dict)
    prefix: str = ""  # path of the workspace in the repository
    commit: str = ""  # that is checked out, with its branch
    baseline: BaselineDiff | None = None
    # Failures that are not in this run's results: found by fuzzing or clients, or fixed since
    recorded: tuple[FailureRecord, ...] = ()
    regressions: tuple[Regression, ...] = ()
    fail_on_regression: bool = False
    timed_out: bool = False
    require_all: bool = False  # no success while any requested item lacks a verdict
    shard: ShardPart | None = None
    pictures: Mapping[tuple[str, int, str], Picture] = field(default_factory=dict)

    def place_of(self, failure: CaseVerdict) -> FileLine | None:
        """Return the location of a failure: the line that raised or that a kernel check found.
        Without one, it is the op's line; None if that is unknown, too."""
        found = failure.source or raising_line(failure)
        if found is None or found.file.startswith("/"):
            return self.places.get(failure.op)
        return FileLine(f"{self.prefix}/{found.file}" if self.prefix else found.file, found.line)

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command that made the report. This is the run's exit code,
        with three exceptions. It is 1 if there is a regression and regressions make the report
        fail. It is 124 if a time limit cut something off, unless something had failed before. It is
        4 if a required verdict is missing."""
        code = self.run.exit_code
        if code in (0, 3, 4) and self.fail_on_regression and self.regressions:
            return 1
        if self.timed_out and code in (0, 4):
            return 124
        whole = Verdict.PASSED in self.run.verdicts and not self.missing
        return 4 if code == 0 and self.require_all and not whole else code

    @property
    def missing(self) -> tuple[MissingVerdict, ...]:
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
        if self.exit_code in (0, 4) and self.run.had_nothing_to_do:
            return NOTHING_TO_DO
        if self.exit_code == 4:
            passed = Verdict.PASSED in self.run.verdicts
            return "not all validated" if passed else "nothing validated"
        words = {0: "passed", 1: "failed", 124: "timed out", 130: "interrupted"}
        return words.get(self.exit_code, "error")

    @property
    def totals(self) -> dict[str, int]:
        """Count cases and kernels by verdict. If an op has no cases in a dtype, the verdict on the
        op in this dtype is counted once."""
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

    def key(self, failure: CaseVerdict) -> tuple[str, int, str]:
        """Return the key of a failing case in `RunReport.known` and `pictures`."""
        return key_of(failure)

    def worst_first(self) -> list[CaseVerdict]:
        """Return the cases that did not pass, with the worst first. The first are wrong results,
        ordered by the share of the tolerance that they used. Then come cases that ended in an
        error, and then the rest."""
        order = {Verdict.FAILED: 0, Verdict.ERROR: 1}

        def rank(failure: CaseVerdict) -> tuple[int, float, int]:
            used = failure.result.stats.tolerance_used
            wrong = math.inf if math.isnan(used) else used
            return order.get(failure.result.verdict, 2), -wrong, failure.case.numel

        return sorted(self.run.failures, key=rank)

    @cached_property
    def causes(self) -> Mapping[tuple[str, int, str], str]:
        return causes_by_case(self.run)

    def representatives(self) -> list[CaseVerdict]:
        found: dict[tuple[str, str, str], CaseVerdict] = {}
        for failure in self.worst_first():
            found.setdefault((failure.op, failure.case.dtype, kind_of(failure)), failure)
        return list(found.values())


def key_of(failure: CaseVerdict) -> tuple[str, int, str]:
    return failure.op, failure.case.seed, failure.case.dtype


def causes_by_case(run: RunReport) -> dict[tuple[str, int, str], str]:
    """Map the failing cases whose cause is known to its sentence."""
    by_op: dict[str, list[OpResult]] = {}
    for result in run.results:
        if result.failures:
            by_op.setdefault(result.op, []).append(result)
    return {
        key_of(failure): found.text
        for same in by_op.values()
        for found in causes(same)
        if found.cause is not None
        for failure in found.members
    }


def raising_line(failure: CaseVerdict) -> FileLine | None:
    """Return the line on which the op raised; None if it did not, or if this is not known."""
    for one in failure.result.failures:
        file, _, line = one.place.rpartition(":")
        if one.kind is FailureKind.EXECUTION and file and line.isdecimal():
            return FileLine(file, int(line))
    return None


def kind_of(failure: CaseVerdict) -> str:
    """Return the kind of a failing case's first failure; if there is none, the case's verdict."""
    first = failure.result.failures[0] if failure.result.failures else None
    return first.kind.value if first is not None else failure.result.verdict.value


# Differences between a workspace and one of its baselines, as data.


NEW, MISSING, UNCHANGED, CHANGED = "new", "missing", "unchanged", "changed"
REGRESSION = "regression"
GONE = "gone"
"""Value in place of a verdict if the op or dtype is no longer configured."""


class ResultDiff(Struct, frozen=True):
    """The difference of an op's result in one dtype from the baseline."""

    op: str
    dtype: str
    status: str
    what: str = ""
    old: Json = None
    new: Json = None


class BaselineDiff(Struct):
    """All differences between a workspace and one baseline."""

    baseline: Baseline
    kernels: list[tuple[str, KernelDiff]] = field(default_factory=list)
    results: list[ResultDiff] = field(default_factory=list)

    @property
    def has_regressions(self) -> bool:
        return any(diff.is_regression for _, diff in self.kernels) or any(
            result.status == REGRESSION for result in self.results
        )

    def drop_missing(self) -> None:
        self.kernels = [(name, diff) for name, diff in self.kernels if diff.status != MISSING]
        self.results = [r for r in self.results if r.status != MISSING and r.new != GONE]

    def regressions(self) -> list[Regression]:
        tag = self.baseline.tag
        worse = [
            Regression(r.op, r.dtype, what=r.what, old=r.old, new=r.new, baseline=tag)
            for r in self.results
            if r.status == REGRESSION
        ]
        for kernel, diff in self.kernels:
            for judgement in diff.judgements:
                if judgement.kind == REGRESSION:
                    old, new = diff.figures(judgement.metric)
                    worse.append(
                        Regression(
                            kernel=kernel,
                            arch=diff.arch,
                            entry=diff.name,
                            what=judgement.metric,
                            old=old,
                            new=new,
                            message=judgement.message,
                            baseline=tag,
                        )
                    )
        return worse


# Group the failing cases of one op by their causes.


class Explained(Struct, frozen=True):
    """Failing cases with the same confirmed cause or, without one, of the same kind. The smallest
    case is the first of `members`."""

    members: list[CaseVerdict]
    cause: Cause | None = None

    @property
    def text(self) -> str:
        return self.cause.text if self.cause is not None else ""


def causes(results: Sequence[OpResult]) -> list[Explained]:
    """Group one op's failing cases by cause; accesses out of bounds and what was never written come
    first, then the group with the smallest case, and what got no verdict last."""
    failures = [failure for result in results for failure in result.failures]
    known = next((result.causes for result in results if result.causes), ())
    of_case = {member: cause for cause in reversed(known) for member in cause.members}
    groups: dict[object, list[CaseVerdict]] = {}
    found: dict[object, Cause] = {}

    def order(failure: CaseVerdict) -> tuple[bool, bool, int, int]:
        says_little = failure.result.verdict is Verdict.INCONCLUSIVE
        return says_little, is_special(failure.result), failure.case.numel, failure.case.index

    for failure in sorted(failures, key=order):
        cause = of_case.get(case_id(failure.case))
        key = _kind(failure) if cause is None else ("cause", cause.text)
        groups.setdefault(key, []).append(failure)
        if cause is not None:
            found[key] = cause
    ordered = sorted(groups.items(), key=lambda group: not _is_root(group[1][0]))
    return [Explained(members, found.get(key)) for key, members in ordered]


def _is_root(failure: CaseVerdict) -> bool:
    """Tell whether wrong values of other cases are likely to follow from this failure."""
    first = next(iter(failure.result.failures), None)
    return first is not None and first.kind in (*OUTSIDE, FailureKind.UNWRITTEN)


def _kind(failure: CaseVerdict) -> object:
    """Return what failing cases without a known cause are grouped by."""
    result = failure.result
    first = result.failures[0] if result.failures else None
    if first is None:
        return (result.verdict,)
    if result.verdict is Verdict.FAILED:
        return result.verdict, first.kind
    return result.verdict, reason(first), first.output, first.place
