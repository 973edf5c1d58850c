"""Scores of candidates: the verdict, the worst error, and the cause of failures."""

from __future__ import annotations

import math

import msgspec

from gpuemu_flow.judge.results import OpResult, RunReport
from gpuemu_flow.judge.verdicts import reason
from gpuemu_flow.model.types import FailureKind, Json, Verdict
from gpuemu_flow.report.document import causes

SCORE_VERSION = 1
_JUDGES = (FailureKind.REFERENCE, FailureKind.GENERATOR)
_LACKING = frozenset(
    {"framework-missing", "triton-missing", "exec-no-cuda", "exec-no-nvcc", "exec-no-compiler",
     "exec-torch"}
)  # fmt: skip
"""Errors of a machine on which the candidate cannot run; they say nothing about the candidate."""


class Score(msgspec.Struct, frozen=True):
    """The score of one candidate."""

    # The op's name, split at its last ``/``; without a ``/``, the candidate has no name.
    problem: str
    candidate: str
    # None if the op did not fail, but could not be judged in every dtype.
    correct: bool | None
    cases: int = 0
    passed: int = 0
    inconclusive: int = 0
    # The worst absolute error over all cases.
    max_abs: float = 0.0
    # The largest share of the tolerance that an element used; 1.0 is just allowed.
    tolerance_used: float = 0.0
    # The cause of the failures, or the first failure if no cause is known. If nothing was
    # judged, the reason. Empty for a correct candidate, even if some of its cases got no
    # verdict.
    cause: str = ""

    @property
    def word(self) -> str:
        """Return the verdict in one word."""
        return {True: "correct", False: "wrong", None: "not judged"}[self.correct]

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON."""
        return {
            "problem": self.problem,
            "candidate": self.candidate,
            "verdict": self.word,
            "correct": self.correct,
            "cases": self.cases,
            "passed": self.passed,
            "inconclusive": self.inconclusive,
            "max_abs": _finite(self.max_abs),
            "tolerance_used": _finite(self.tolerance_used),
            "cause": self.cause,
        }


class Scores(msgspec.Struct, frozen=True):
    """The scores of a workspace, in the order of its configuration."""

    rows: tuple[Score, ...]
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """Return 0 if each candidate was judged, 4 if one was not or none exists, 130 on Ctrl-C."""
        if self.interrupted:
            return 130
        return 0 if self.rows and all(row.correct is not None for row in self.rows) else 4

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON."""
        rows: list[Json] = [row.to_json() for row in self.rows]
        return {"schema_version": SCORE_VERSION, "scores": rows}


def scores_of(report: RunReport) -> Scores:
    """Return the scores from a run's report; an op that fails in any dtype is wrong."""
    by_op: dict[str, list[OpResult]] = {}
    for result in report.results:
        by_op.setdefault(result.op, []).append(result)
    return Scores(tuple(_score(op, found) for op, found in by_op.items()), report.interrupted)


def _score(op: str, results: list[OpResult]) -> Score:
    problem, _, candidate = op.rpartition("/") if "/" in op else (op, "", "")
    correct = _correct(results, {result.verdict for result in results})
    return Score(
        problem,
        candidate,
        correct,
        sum(result.cases for result in results),
        sum(result.passed for result in results),
        sum(result.inconclusive for result in results),
        max(_worst(result.max_abs) for result in results),
        max(_worst(result.tolerance_used) for result in results),
        "" if correct else _cause(results),
    )


def _correct(results: list[OpResult], verdicts: set[Verdict]) -> bool | None:
    """Tell whether an op is correct; None if it did not fail, but could not be judged fully.

    An error of the op itself counts as wrong. If there are only other errors, the result is None:
    errors of the reference or of a function that makes inputs, and errors due to a framework that
    this machine lacks.
    """
    if Verdict.FAILED in verdicts:
        return False
    if Verdict.ERROR in verdicts:
        cases = [failure for result in results for failure in result.failures]
        blamed = [f for case in cases for f in case.result.failures]
        theirs = [f for f in blamed if f.kind not in _JUDGES and f.why not in _LACKING]
        return False if theirs else None
    return True if verdicts == {Verdict.PASSED} else None


def _cause(results: list[OpResult]) -> str:
    for explained in causes(results):
        first = explained.members[0].result
        said = reason(first.failures[0]) if first.failures else first.verdict.value
        return explained.cause.text if explained.cause is not None else said
    return next((result.reason for result in results if result.reason), "")


def _worst(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _finite(value: float) -> Json:
    return value if math.isfinite(value) else "inf"
