"""Test what counts as a wrong candidate, and what says nothing of it."""

from __future__ import annotations

from itertools import islice

import pytest

from gpuemu_flow.cases.op_schema import default_schema
from gpuemu_flow.cases.plan import iterate_cases
from gpuemu_flow.judge.results import CaseVerdict, OpResult, RunReport, TaskCounts
from gpuemu_flow.judge.verdicts import run_error_result
from gpuemu_flow.model.types import CheckResult, FailureKind, Verdict
from gpuemu_flow.services.problems.score import scores_of
from gpuemu_flow.workers.api import RunError

OP, REFERENCE, GENERATOR = (
    FailureKind.EXECUTION,
    FailureKind.REFERENCE,
    FailureKind.GENERATOR,
)


def score(*errors: tuple[FailureKind, str]) -> tuple[bool | None, int]:
    """Return the score and exit code of a candidate with these errors, one in each case."""
    plan = iterate_cases(
        default_schema(["x"]),
        seed=1,
        dtype="float32",
        strategies=("normal",),
        layouts=("contiguous",),
    )
    failures = tuple(
        CaseVerdict("p/a", case, run_error_result(kind, RunError(slug, "no")))
        for case, (kind, slug) in zip(islice(plan, len(errors)), errors, strict=True)
    )
    result = OpResult("p/a", "float32", Verdict.ERROR, cases=4, errors=2, failures=failures)
    scores = scores_of(RunReport(TaskCounts(), (), (result,)))
    return scores.rows[0].correct, scores.exit_code


def test_a_correct_candidate_has_no_cause_where_a_case_has_no_verdict() -> None:
    plan = iterate_cases(
        default_schema(["x"]),
        seed=1,
        dtype="float32",
        strategies=("normal",),
        layouts=("contiguous",),
    )
    unjudged = CaseVerdict("p/a", next(plan), CheckResult(Verdict.INCONCLUSIVE))
    result = OpResult(
        "p/a", "float32", Verdict.PASSED, cases=4, passed=3, inconclusive=1, failures=(unjudged,)
    )
    (found,) = scores_of(RunReport(TaskCounts(), (), (result,))).rows
    assert (found.word, found.passed, found.inconclusive, found.cause) == ("correct", 3, 1, "")


@pytest.mark.parametrize("slug", ["op-crashed", "op-not-loadable", "ValueError"])
def test_errors_of_the_candidate_make_it_wrong(slug: str) -> None:
    assert score((OP, slug)) == (False, 0)
    assert score((REFERENCE, "op-crashed"), (OP, slug)) == (False, 0)


@pytest.mark.parametrize(
    "error",
    [
        (REFERENCE, "op-crashed"),
        (GENERATOR, "generate-failed"),
        (OP, "framework-missing"),
        (OP, "triton-missing"),
    ],
)
def test_other_errors_say_nothing_of_it(error: tuple[FailureKind, str]) -> None:
    assert score(error) == (None, 4)
