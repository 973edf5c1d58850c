"""Test that what a fuzz run keeps is bounded and does not depend on the order of its cases."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from msgspec.structs import replace

from gpuemu_flow.cases.op_schema import Dim, OpSchema, TensorDef
from gpuemu_flow.cases.plan import iterate_cases
from gpuemu_flow.fuzz.outcome import (
    MOST_FAILURES,
    MOST_PASSING,
    FailureSample,
    Judged,
    OpFuzzOutcome,
)
from gpuemu_flow.model.types import CheckResult, ErrorStats, Failure, FailureKind, Verdict

SCHEMA = OpSchema(
    dims=(Dim("M", (3, 128)), Dim("N", (1, 7, 512))),
    inputs=(TensorDef("x", ("M", "N")),),
    outputs=(TensorDef("result", ("M", "N")),),
    fixed_shapes=(),
)


def cases(count: int) -> Iterator[Judged]:
    """Every tenth one fails, every seventh passes out of the cache."""
    stream = iterate_cases(SCHEMA, seed=5, dtype="float32", strategies=(), layouts=())
    for number, case in zip(range(count), stream, strict=False):
        failures = (Failure(FailureKind.TOLERANCE, "wrong"),) if number % 10 == 0 else ()
        verdict = Verdict.FAILED if failures else Verdict.PASSED
        stats = ErrorStats(count=1, num_finite=1, tolerance_used=number / count)
        yield Judged(number, case, CheckResult(verdict, failures, stats), number % 7 == 0)


def outcome_of(judged: Iterable[Judged]) -> OpFuzzOutcome:
    outcome = OpFuzzOutcome("op", 5)
    for each in judged:
        outcome.add(each)
    return outcome


def test_counts() -> None:
    outcome = outcome_of(cases(200))
    assert (outcome.cases, outcome.cached) == (200, 29)
    assert (outcome.count(Verdict.PASSED), outcome.count(Verdict.FAILED)) == (180, 20)
    assert [judged.number for judged in outcome.failures] == list(range(0, 200, 10))
    assert outcome.margins == [18] * 10
    assert outcome.worst_margin == 199 / 200
    kept = [judged.case for judged in cases(200) if judged.number % 10]
    assert outcome.passing == kept
    assert outcome.passed_classes == Counter(case.shape_class for case in kept)
    assert outcome.counted()["dtypes"] == {"float32": 200}
    assert outcome.counted()["layouts"].total() == 200


def test_a_margin_without_bounds_counts_nowhere() -> None:
    one = next(iter(cases(20)))
    stats = ErrorStats(count=1, num_finite=1, tolerance_used=float("inf"))
    outcome = outcome_of([replace(one, result=CheckResult(Verdict.PASSED, stats=stats))])
    assert (outcome.worst_margin, sum(outcome.margins)) == (0.0, 0)


def test_the_order_of_judging_changes_nothing() -> None:
    judged = list(cases(3 * MOST_PASSING))
    first = outcome_of(judged)
    random.Random(1).shuffle(judged)
    second = outcome_of(judged)
    assert len(first.passing) == MOST_PASSING
    for what in ("failures", "passing", "coverage", "margins", "worst_margin", "passed_classes"):
        assert getattr(first, what) == getattr(second, what), what
    assert first.counted() == second.counted()
    assert [list(counts) for counts in first.counted().values()] == [
        list(counts) for counts in second.counted().values()
    ]


def test_the_passing_cases_that_are_kept_come_from_the_whole_run() -> None:
    count = 5 * MOST_PASSING
    passing = outcome_of(cases(count)).passing
    quarters = Counter(case.index * 4 // count for case in passing)
    assert min(quarters.values()) > MOST_PASSING / 5


def failing(count: int) -> Iterator[Judged]:
    """Every 97th case raises, every 500th hides an Inf; the others are beyond the tolerance."""
    for judged in cases(count):
        failure, verdict = Failure(FailureKind.TOLERANCE, "wrong"), Verdict.FAILED
        if judged.number % 97 == 0:
            failure = Failure(FailureKind.EXECUTION, "raised", why="KeyError")
            verdict = Verdict.ERROR
        elif judged.number % 500 == 0:
            failure = Failure(FailureKind.INF, "wrong")
        yield replace(judged, result=CheckResult(verdict, (failure,)))


def test_of_many_failures_each_reason_is_kept_and_the_others_are_counted() -> None:
    count = 3 * MOST_FAILURES
    judged = list(failing(count))
    first = outcome_of(judged)
    random.Random(2).shuffle(judged)
    second = outcome_of(judged)
    assert first.failures == second.failures
    assert first.left_out == second.left_out
    numbers = [each.number for each in first.failures]
    assert numbers == sorted(set(numbers))
    rare = [n for n in range(count) if n % 97 == 0 or n % 500 == 0]
    assert set(rare) <= set(numbers)
    common = [n for n in range(count) if n % 97 and n % 500]
    some = MOST_FAILURES - len(rare)
    smallest = min(
        (each for each in judged if each.number in set(common)),
        key=lambda each: (each.case.numel, each.number),
    )
    assert [n for n in numbers if n in set(common)] == sorted({*common[:some], smallest.number})
    assert first.left_out == {"ToleranceExceeded": count - len(numbers)}
    assert (first.count(Verdict.FAILED), first.count(Verdict.ERROR)) == (
        count - len(range(0, count, 97)),
        len(range(0, count, 97)),
    )


def test_few_failures_are_all_kept_and_wanted() -> None:
    judged = list(failing(MOST_FAILURES))
    outcome = OpFuzzOutcome("op", 5)
    for each in judged:
        assert outcome.wants(each)
        outcome.add(each)
    assert outcome.failures == judged
    assert outcome.left_out == {}


def test_the_failures_that_are_recorded_are_bounded_and_those_that_are_listed_are_among_them() -> (
    None
):
    outcome = OpFuzzOutcome("op", 5)
    wanted = []
    for each in failing(4 * MOST_FAILURES):
        if outcome.wants(each):
            wanted.append(each.number)
        outcome.add(each)
    assert len(wanted) < 1.2 * MOST_FAILURES
    assert {each.number for each in outcome.failures} <= set(wanted)
    assert not outcome.wants(next(each for each in cases(2) if each.number == 1))


def test_more_reasons_than_failures_that_can_be_kept() -> None:
    """A reason has the name of an exception class, which the op chooses."""
    sample = FailureSample(most=5)
    judged = [
        replace(
            each,
            result=CheckResult(
                Verdict.ERROR, (Failure(FailureKind.EXECUTION, "raised", why=f"E{each.number}"),)
            ),
        )
        for each in cases(40)
    ]
    random.Random(3).shuffle(judged)
    for each in judged:
        sample.add(each)
    assert len(sample.chosen()) in (5, 6)
    assert sum(sample.left_out().values()) == 40 - len(sample.chosen())


@pytest.mark.ci
def test_memory_does_not_grow_with_cases_that_pass() -> None:
    assert_flat(judged for judged in cases(10**9) if judged.number % 10)


@pytest.mark.ci
def test_memory_does_not_grow_with_cases_that_fail() -> None:
    assert_flat(failing(10**9))


def assert_flat(judged: Iterator[Judged]) -> None:
    outcome = OpFuzzOutcome("op", 5)
    tracemalloc.start()
    try:
        held = []
        for _ in range(3):
            for _ in range(2 * MOST_PASSING):
                outcome.add(next(judged))
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[2] - held[0] < 0.1 * held[0]
