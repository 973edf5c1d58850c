"""Types for the results of a run: the verdict per op and dtype, each failing case, kernels."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.types import (
    PLAIN_STRATEGIES,
    STRATEGIES,
    Case,
    CheckResult,
    CodePlace,
    Json,
    Verdict,
)
from gpuemu_flow.model.verdicts import Cause

if TYPE_CHECKING:
    from gpuemu_flow.lint.kernel import KernelRecord

SCHEMA_VERSION = 1


class Absence(str, Enum):
    """A reason why a configured item has no verdict."""

    NONE = ""
    UNABLE = "unable"
    """There is no tool or program for the item, or too little of it was judged."""
    CUT_OFF = "cut off"
    """The run's time limit ended the run before the item was judged."""
    LEFT_OUT = "left out"
    """The item was not requested."""
    OUTDATED = "out of date"
    """The item was judged, but has changed since."""


MISSED = (Absence.UNABLE, Absence.CUT_OFF, Absence.OUTDATED)
"""Reasons why a requested item has no verdict on its present state."""


class MinimalInput(Struct, frozen=True):
    """One input of a failing case: its values in a line and, if they are few, as plain JSON."""

    dtype: str
    shape: tuple[int, ...]
    text: str
    values: Json = None


class Minimal(Struct, frozen=True):
    """What is shown of a failure first: its smallest inputs, both values, place and command."""

    inputs: Mapping[str, MinimalInput] = {}
    kind: str = ""
    output: str = ""
    index: tuple[int, ...] | None = None
    expected: float | None = None
    actual: float | None = None
    says: str = ""  # both values, or what happened in their place
    place: str = ""  # ``file:line`` of the line that raised, else of the op
    command: str = ""
    id: str = ""

    @property
    def shows(self) -> tuple[object, ...]:
        """Return what two failures have in common that are one."""
        inputs = tuple((name, one.shape, one.text) for name, one in self.inputs.items())
        return inputs, self.kind, self.output, self.index, self.says


class CaseVerdict(Struct, frozen=True):
    """One case and its verdict, whether it passed or not."""

    op: str
    case: Case
    result: CheckResult
    command: str = ""  # that gives a client, which alone runs the op, the case's inputs

    @property
    def name(self) -> str:
        """Return ``op[dtype-shape-layout-strategy-seed]``, which is unique among an op's cases."""
        case = self.case
        shape = ",".join("x".join(map(str, i.shape)) or "scalar" for i in case.inputs)
        return f"{self.op}[{case.dtype}-{shape}-{case.layout}-{case.strategy}-{case.seed}]"

    @property
    def source(self) -> CodePlace | None:
        """Return the source line of the first finding of a kernel check; None if there is none.
        Findings outside of the workspace, such as in a header of the toolkit, are skipped, since
        the line that calls such code usually has a finding, too. Findings are considered only up to
        the first failure that is no finding."""
        for failure in self.result.failures:
            if failure.finding is None:
                break
            if failure.finding.place.is_inside:
                return failure.finding.place
        return None

    @property
    def reproduce(self) -> str:
        """Return the command that runs this case again."""
        words = [str(self.case.seed), "--op", self.op, "--case", self.case.to_text()]
        return self.command or f"gpuemu-flow reproduce {shlex.join(words)}"


TELLING = 128  # fewest elements of a plain case that is preferred to larger ones


def most_telling(cases: Sequence[tuple[Case, CheckResult]]) -> int:
    """Return which of some failing cases tells most of where and how results are wrong: a large one
    of plain values. Where nothing was compared, or nothing is noted, it is the first one."""

    def tells(number: int) -> tuple[bool, bool, int]:
        case, result = cases[number]
        drawn = all(s.strategy in PLAIN_STRATEGIES for s in case.inputs if s.strategy in STRATEGIES)
        plain = case.is_plain and case.numel >= TELLING
        return result.verdict is Verdict.FAILED and drawn and bool(result.notes), plain, case.numel

    most = max(range(len(cases)), key=tells) if cases[0][1].verdict is Verdict.FAILED else 0
    return most if cases[most][1].all_notes else 0


NONFINITE_SLUG = "nonfinite-untried"
NONFINITE_HINT = "`nonfinite = true` tries them, `nonfinite = false` says that none is meant"

STANDING = frozenset(
    (
        "untracked-inputs",
        "rule-undeclared-input",
        "rule-undeclared-output",
        "rule-deleted-file",
        "loose-tolerance",
        "constant-reference",
        "reference-imports-op",
        "causes-cut-short",
        NONFINITE_SLUG,
    )
)
"""Warnings that belong to results, so that each report of these results shows them."""


class OpResult(Struct, frozen=True):
    """All cases of one op and dtype."""

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
    tolerance_used: float = 0.0  # largest share of the tolerance; up to 1.0 is allowed
    unjudged: float = 0.0  # share of all output elements without a verdict
    duration_s: float = 0.0  # of the comparison and the tasks that it reads, when they last ran
    cached: bool = False  # nothing of the op was executed in this run
    reason: str = ""  # why the op was skipped or has no verdict
    failures: tuple[CaseVerdict, ...] = ()
    passing: tuple[Case, ...] = ()  # with which the failing ones are compared
    causes: tuple[Cause, ...] = ()
    absence: Absence = Absence.NONE
    loose: tuple[str, ...] = ()  # outputs whose tolerance lets zeros pass in every case
    constant: tuple[tuple[str, float], ...] = ()  # outputs expected to be the same in every case
    sandbox: str = ""
    kept_finite: tuple[str, ...] = ()  # inputs whose range excludes the NaN and Inf asked for
    untried: tuple[str, ...] = ()  # listed sizes that no case had, such as ``N = 9, 11``

    @property
    def absent(self) -> Absence:
        """Return the reason why there is no verdict; `Absence.NONE` if there is one."""
        return _absence(self.verdict, self.absence)

    @property
    def failed_as_a_whole(self) -> bool:
        """Tell whether the cases together show a failure that none shows alone; see `reason`."""
        return self.verdict is Verdict.FAILED and not self.failed and not self.failures

    def weaknesses(self) -> Iterator[Problem]:
        """Yield warnings about comparisons that prove little. For example, a tolerance may be so
        large that an output of zeros would pass."""
        for name in self.loose:
            message = f"the tolerance exceeds every expected value: zeros for {name!r} would pass"
            hint = 'give a smaller one, or `tolerance = "auto"`'
            yield self._warning("loose-tolerance", message, hint)
        for name, value in self.constant:
            message = f"the reference gives {value:g} for {name!r} in every case"
            hint = "an op that always gives it passes; check whether that is intended"
            yield self._warning("constant-reference", message, hint)
        if self.kept_finite:
            names = ", ".join(self.kept_finite)
            message = f"no NaN and no Inf was tried in {names}: the range has two ends"
            yield self._warning(NONFINITE_SLUG, message, NONFINITE_HINT)

    def _warning(self, slug: str, message: str, hint: str) -> Problem:
        return Problem(slug, f"{self.op} {self.dtype}: {message}", hint, warning=True)


def _absence(verdict: Verdict, known: Absence) -> Absence:
    if known is Absence.NONE and verdict in (Verdict.SKIPPED, Verdict.INCONCLUSIVE):
        return Absence.UNABLE
    return known


class KernelResult(Struct, frozen=True):
    """The lint of one configured kernel for one architecture."""

    kernel: str
    arch: str
    verdict: Verdict
    reason: str = ""
    cached: bool = False
    entries: tuple[KernelRecord, ...] = ()
    changes: tuple[KernelChange, ...] = ()
    absence: Absence = Absence.NONE

    @property
    def absent(self) -> Absence:
        """Return the reason why there is no verdict; `Absence.NONE` if there is one."""
        return _absence(self.verdict, self.absence)


class TaskCounts(Struct, frozen=True):
    """Numbers of tasks by outcome."""

    total: int = 0
    current: int = 0
    ran: int = 0
    restored: int = 0
    failed: int = 0
    skipped: int = 0


class KnownFailure(Struct, frozen=True):
    """What the record of a failing case holds beside the verdict."""

    id: str
    time: str = ""
    minimized: str | None = None  # id of the smallest case found that fails alike
    # The explicit tolerance that judged the case; None under ``auto``
    atol: float | None = None
    rtol: float | None = None


class RunReport(Struct, frozen=True):
    """The results of a run, as data. `drawn_seed` is the random master seed if the run drew one,
    else None. `build_only` is true if only builds were requested, so that there is nothing to
    check. `nothing_due` is true if a set such as ``@changed``, a commit or a shard was requested,
    and no task belongs to it."""

    tasks: TaskCounts
    executed: tuple[str, ...]
    results: tuple[OpResult, ...]
    problems: tuple[Problem, ...] = ()
    changes: tuple[ResultChange, ...] = ()
    duration_s: float = 0.0
    interrupted: bool = False
    kernels: tuple[KernelResult, ...] = ()
    drawn_seed: int | None = None
    build_only: bool = False
    nothing_due: bool = False
    # By op, seed and dtype
    minima: Mapping[tuple[str, int, str], Minimal] = {}
    known: Mapping[tuple[str, int, str], KnownFailure] = {}

    @property
    def failures(self) -> list[CaseVerdict]:
        return [failure for result in self.results for failure in result.failures]

    def minimal_of(self, failure: CaseVerdict) -> Minimal | None:
        """Return what is shown of a failing case first. It may be a smaller case of the same op
        that fails in the same way."""
        case = failure.case
        own = self.minima.get((failure.op, case.seed, case.dtype))
        kinds = {one.kind.value for one in failure.result.failures}
        alike = (m for (op, *_), m in self.minima.items() if op == failure.op and m.kind in kinds)
        return own or next(alike, None)

    @property
    def had_nothing_to_do(self) -> bool:
        return self.nothing_due and self.verdicts <= {Verdict.SKIPPED}

    @property
    def verdicts(self) -> set[Verdict]:
        """Return the verdicts on ops and kernels."""
        return {r.verdict for r in self.results} | {k.verdict for k in self.kernels}

    @property
    def exit_code(self) -> int:
        """Return the exit code of the run. It is 130 if the run was interrupted, 1 if an item
        failed, 3 after an error, 0 if an item passed or there was nothing to do, and else 4, since
        nothing was validated."""
        verdicts = self.verdicts
        if self.interrupted:
            return 130
        if Verdict.FAILED in verdicts:
            return 1
        if Verdict.ERROR in verdicts or any(not p.warning for p in self.problems):
            return 3
        if Verdict.PASSED in verdicts:
            return 0
        if self.had_nothing_to_do:
            return 0
        return 0 if self.build_only and not verdicts else 4


# Changes of an op or kernel since the previous run, as the ``diff`` stages write them.

WORSE = ("regression", "growth")
"""Kinds of changes that count as regressions."""


class ResultChange(Struct, frozen=True):
    """A difference between two summaries of an op in one dtype."""

    op: str
    dtype: str
    kind: str  # new, regression, growth, improvement or change
    what: str  # verdict (of the op), max_abs, "case verdict", cases; "op" if there was none before
    old: str | int | float | None
    new: str | int | float | None

    @property
    def is_worse(self) -> bool:
        return self.kind in WORSE

    def errors(self) -> tuple[float, float]:
        """Return the largest error before and now, for a change of ``max_abs``."""
        return float(self.old or 0), float(self.new or 0)


class KernelChange(Struct, frozen=True):
    """A change that made a kernel better or worse, usually a change of one of its figures."""

    kernel: str
    arch: str
    kind: str
    metric: str
    message: str
    old: int | float | None = None  # None where the figure is unknown
    new: int | float | None = None

    @property
    def is_worse(self) -> bool:
        return self.kind in WORSE


# Regressions since the last run or a baseline, as data for all writers.


class Regression(Struct, frozen=True):
    """One figure or verdict of an op or of a kernel that got worse."""

    op: str = ""
    dtype: str = ""
    kernel: str = ""  # as configured; empty for an op
    arch: str = ""
    entry: str = ""  # name of the kernel in the artifact
    what: str = ""  # verdict, max_abs or the name of a kernel's figure
    old: Json = None
    new: Json = None
    message: str = ""
    baseline: str = ""  # empty if the comparison was with the last run

    @property
    def subject(self) -> str:
        """Return the op and dtype, or the kernel and architecture, as text."""
        words = (self.op, self.dtype) if not self.kernel else ("kernel", self.entry, self.arch)
        return " ".join(filter(None, words))

    @property
    def sentence(self) -> str:
        """Describe in a sentence what got worse, by how much, and since when."""
        change = (
            self.message if self.kernel else f"{self.what} {_named(self.old)} -> {_named(self.new)}"
        )
        since = f"against {self.baseline}" if self.baseline else "since the last run"
        return f"{self.subject}: {change} {since}"


def _named(value: Json) -> Json:
    return "none" if value is None else value
