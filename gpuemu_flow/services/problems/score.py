"""Scores of candidates: the verdict, the worst error, and the cause of failures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from gpuemu_flow.judge.results import OpResult, RunReport
from gpuemu_flow.judge.verdicts import reason
from gpuemu_flow.model.types import FailureKind, Json, Verdict
from gpuemu_flow.report.document import causes
from gpuemu_flow.tasks import stages
from gpuemu_flow.workers.api import NOT_RUN_SLUG, TIMEOUT

if TYPE_CHECKING:
    from gpuemu_flow.build.workspace import Workspace

SCORE_VERSION = 1
_JUDGES = (FailureKind.REFERENCE, FailureKind.GENERATOR)
_LACKING = frozenset(
    {"framework-missing", "triton-missing", "exec-no-cuda", "exec-no-nvcc", "exec-no-compiler",
     "exec-torch", TIMEOUT, NOT_RUN_SLUG}
)  # fmt: skip
"""Errors of a machine that lacks something, or time; they say nothing about the candidate."""
INTERRUPTED = "interrupted before it was judged"


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
    # What a correct candidate was not tried with: sizes that the import scaled down.
    up_to: str = ""

    @property
    def word(self) -> str:
        return {True: "correct", False: "wrong", None: "not judged"}[self.correct]

    def to_json(self) -> dict[str, Json]:
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
            "up_to": self.up_to,
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
        rows: list[Json] = [row.to_json() for row in self.rows]
        return {
            "schema_version": SCORE_VERSION,
            "interrupted": self.interrupted,
            "scores": rows,
        }


def scores_of(
    report: RunReport, asked: Iterable[str] = (), scaled: Mapping[str, str] | None = None
) -> Scores:
    """Return the scores from a run's report; an op that fails in any dtype is wrong. `asked` names
    ops that have a row even if an interrupt came before their results, `scaled` what is told of the
    sizes of those that are correct: see `scaled_sizes`."""
    by_op: dict[str, list[OpResult]] = {op: [] for op in asked}
    for result in report.results:
        by_op.setdefault(result.op, []).append(result)
    rows = (_score(op, found, (scaled or {}).get(op, "")) for op, found in by_op.items())
    return Scores(tuple(rows), report.interrupted)


def scaled_sizes(workspace: Workspace) -> dict[str, str]:
    """Tell by op which sizes of its problem no case has, as the import scaled them down."""
    found = {}
    for spec in workspace.graph.tasks.values():
        if spec.stage != stages.GENERATE:
            continue
        problem = spec.subject.rpartition("/")[0]
        try:
            path = workspace.root / "problems" / problem / "problem.json"
            scaled = json.loads(path.read_text(encoding="utf-8"))["scaled"].items()
            largest = {
                dim["name"]: max(dim["candidates"], default=0)
                for dim in spec.settings["schema"]["dims"]
            }
            short = [
                f"{name} = {largest.get(name, small)} (the problem has {given:,})"
                for name, (given, small) in scaled
                if largest.get(name, small) < given
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # not written by an import, or changed since
        if short:
            found[spec.subject] = f"up to {', '.join(short)}"
    return found


def _score(op: str, results: list[OpResult], scaled: str) -> Score:
    problem, _, candidate = op.rpartition("/") if "/" in op else (op, "", "")
    if not results:
        return Score(problem, candidate, None, cause=INTERRUPTED)
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
        scaled if correct else "",
    )


def _correct(results: list[OpResult], verdicts: set[Verdict]) -> bool | None:
    """Tell whether an op is correct; None if it did not fail, but could not be judged fully. An
    error of the op itself counts as wrong. If there are only other errors, the result is None:
    errors of the reference or of a function that makes inputs, and errors due to a framework that
    this machine lacks."""
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
