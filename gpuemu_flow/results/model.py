"""Types for the results of a run: the verdict per op and dtype, each failing case, kernels."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING

from gpuemu_flow.errors import Problem
from gpuemu_flow.kernel_findings import CodePlace
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.results.changes import KernelChange, ResultChange
from gpuemu_flow.types import Case, CheckResult, Verdict

if TYPE_CHECKING:
    from gpuemu_flow.artifacts.kernel import KernelRecord
    from gpuemu_flow.cases.cause import Cause

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


@dataclass(frozen=True)
class CaseFailure:
    """A case that did not pass."""

    op: str
    case: Case
    result: CheckResult

    @property
    def source(self) -> CodePlace | None:
        """Return the source line of the first finding of a kernel check; None if there is none.

        Findings outside of the workspace, such as in a header of the toolkit, are skipped, since
        the line that calls such code usually has a finding, too. Findings are considered only up to
        the first failure that is no finding.
        """
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
        return f"gpuemu-flow reproduce {shlex.join(words)}"


NONFINITE_SLUG = "nonfinite-untried"
NONFINITE_HINT = "`nonfinite = true` tries them, `nonfinite = false` says that none is meant"

STANDING = frozenset(
    (
        "untracked-inputs",
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
        Largest errors over all cases.
    tolerance_used : float
        Largest share of the tolerance that an element used; up to 1.0 is allowed.
    unjudged : float
        Share of all output elements without a verdict.
    duration_s : float
        Seconds that the last executions of the comparison, and of the tasks whose results it reads,
        took in total.
    cached : bool
        True if nothing of the op was executed in this run.
    reason : str
        Reason why the op was skipped or has no verdict; else empty.
    failures : tuple of CaseFailure
        Smallest first.
    passing : tuple of Case
        Passing cases, with which the failing ones are compared.
    absence : Absence
        Category of the reason why there is no verdict; `Absence.NONE` to derive it from the
        verdict.
    loose : tuple of str
        Outputs whose explicit tolerance is so large that zeros would pass in every case.
    constant : tuple of (str, float)
        Outputs whose expected value is the same constant in every case.
    causes : tuple of Cause
        Confirmed causes of the op's failures in all its dtypes.
    sandbox : str
        The op's sandbox, such as ``landlock 7, seccomp``; empty if nothing was run.
    kept_finite : tuple of str
        Inputs whose range excludes NaN and Inf, although such values were requested.
    untried : tuple of str
        Sizes that the schema lists but no case had: one text per dim, such as ``N = 9, 11``.
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
    sandbox: str = ""
    kept_finite: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()

    @property
    def absent(self) -> Absence:
        """Return the reason why there is no verdict; `Absence.NONE` if there is one."""
        return _absence(self.verdict, self.absence)

    def weaknesses(self) -> Iterator[Problem]:
        """Yield warnings about comparisons that prove little.

        For example, a tolerance may be so large that an output of zeros would pass.
        """
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


@dataclass(frozen=True)
class KernelResult:
    """The lint of one configured kernel for one architecture.

    Attributes
    ----------
    kernel, arch : str
        As configured; the architecture is empty if the artifact determines it.
    verdict : Verdict
        ``failed`` if there is a violation with the severity ``error`` that is not allowed.
    reason : str
        Reason why the kernel was skipped or could not be linted; else empty.
    cached : bool
        True if this run neither built nor linted the kernel.
    entries : tuple of KernelRecord
        Each kernel of the artifact.
    changes : tuple of KernelChange
        Changes since the previous run.
    absence : Absence
        See `OpResult`.
    """

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


@dataclass(frozen=True)
class TaskCounts:
    """Numbers of tasks by outcome."""

    total: int = 0
    current: int = 0
    ran: int = 0
    restored: int = 0
    failed: int = 0
    skipped: int = 0


@dataclass(frozen=True)
class RunReport:
    """The results of a run, as data.

    `drawn_seed` is the random master seed if the run drew one, else None. `build_only` is true if
    only builds were requested, so that there is nothing to check. `nothing_due` is true if a set
    such as ``@changed``, a commit or a shard was requested, and no task belongs to it.
    """

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

    @property
    def failures(self) -> list[CaseFailure]:
        """Return every failing case, in the order of the results."""
        return [failure for result in self.results for failure in result.failures]

    @property
    def had_nothing_to_do(self) -> bool:
        """Tell whether nothing was judged because no task belongs to the requested set or shard."""
        return self.nothing_due and self.verdicts <= {Verdict.SKIPPED}

    @property
    def verdicts(self) -> set[Verdict]:
        """Return the verdicts on ops and kernels."""
        return {r.verdict for r in self.results} | {k.verdict for k in self.kernels}

    @property
    def exit_code(self) -> int:
        """Return the exit code of the run.

        It is 130 if the run was interrupted, 1 if an item failed, 3 after an error, 0 if an item
        passed or there was nothing to do, and else 4, since nothing was validated.
        """
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
