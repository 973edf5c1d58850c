"""An experiment states what new cases confirm, within its budget, the same each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuemu_flow.cases.cause import Cause
from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.cases.hypotheses import Hypothesis
from gpuemu_flow.cases.op_schema import BUILTIN_SCHEMAS
from gpuemu_flow.cases.plan import plan_cases
from gpuemu_flow.cases.predicates import Predicate
from gpuemu_flow.cases.variants import Variants
from gpuemu_flow.fuzz import budget as budget_module
from gpuemu_flow.fuzz import experiment as experiment_module
from gpuemu_flow.fuzz.budget import FEWEST_CASES, MOST_SECONDS, SECONDS, Budget
from gpuemu_flow.fuzz.experiment import Experiment, _is_vague
from gpuemu_flow.fuzz.relation_search import RelationSearch, Tried
from gpuemu_flow.types import STRATEGIES, Case

Array = NDArray[Any]
Op = Callable[[Array, Array], Array]
LAYOUTS = ("contiguous", "strided", "transposed", "offset")
SCHEMA = BUILTIN_SCHEMAS["matmul"]


def right(a: Array, b: Array) -> Array:
    return np.asarray(a @ b)


class Bench:
    """Runs an op on cases as a session would, and counts them."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.calls = 0

    def run(self, case: Case, inputs: Mapping[str, Array] | None = None) -> Tried:
        self.calls += 1
        inputs = materialise(case) if inputs is None else inputs
        with np.errstate(all="ignore"):
            wide = [array.astype(np.float64) for array in inputs.values()]
            actual, expected = self.op(*wide), right(*wide)
            near = np.allclose(actual, expected, rtol=1e-6, atol=0, equal_nan=True)
        return Tried(case, not near, inputs, {"output": actual}, {"output": expected})

    def ask(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"output": right(*inputs.values())}


def experiment(
    op: Op, budget: int = 40, variants: type[Variants] = Variants
) -> tuple[Cause | None, Bench]:
    cases = [
        case
        for case in plan_cases(
            SCHEMA, seed=2, dtype="float32", count=24, strategies=STRATEGIES, layouts=LAYOUTS
        )
        if case.numel < 1 << 16
    ]
    bench = Bench(op)
    failing = [case for case in cases if bench.run(case).failed]
    passing = [case for case in cases if case not in failing]
    bench.calls = 0
    made = Experiment(
        variants(SCHEMA, "float32", STRATEGIES, LAYOUTS, 7, 1 << 14),
        bench.run,
        RelationSearch(SCHEMA, bench.ask),
        Budget(budget),
        failing,
        passing,
    )
    return made.cause(), bench


def last_column(a: Array, b: Array) -> Array:
    y = (a @ b).copy()
    if y.shape[1] > 32:
        y[:, -1] = 0
    return np.asarray(y)


def test_a_condition_is_stated_with_the_cases_that_confirm_it() -> None:
    cause, bench = experiment(last_column)
    assert cause is not None and cause.stated
    assert [p.sentence for p in cause.predicates] == ["N is above 32"]
    assert cause.counts.outside_failed == 0
    assert min(cause.counts.inside, cause.counts.outside) >= 8
    assert bench.calls <= 40
    assert cause.text.startswith("fails when N is above 32, confirmed by ")


def test_a_relation_is_stated_before_a_condition() -> None:
    cause, _ = experiment(lambda a, b: right(a, b) / np.sqrt(max(a.shape[1], 1)))
    assert cause is not None and cause.relation is not None
    assert cause.relation.formula == "1/√K"


def test_the_same_experiment_says_the_same() -> None:
    assert experiment(last_column)[0] == experiment(last_column)[0]


@pytest.mark.parametrize("budget", [0, 1, 5, 11])
def test_a_small_budget_states_no_condition_and_is_kept_to(budget: int) -> None:
    cause, bench = experiment(last_column, budget)
    assert cause is None
    assert bench.calls <= budget


def test_failures_without_a_reason_have_no_cause() -> None:
    def fickle(a: Array, b: Array) -> Array:
        y = right(a, b)
        bits = int(abs(float(np.nansum(a))) * 1e6) if np.isfinite(np.nansum(a)) else 1
        return y + (3.0 + y) * (bits % 3 == 0)

    cause, _ = experiment(fickle)
    assert cause is None or cause.relation, "the wrong cases share nothing but chance"


def test_a_slow_op_has_fewer_cases() -> None:
    budget = Budget(40)
    for _ in range(FEWEST_CASES):
        assert budget.take()
        budget.took(SECONDS / 10)
    assert sum(budget.take() for _ in range(40)) == 10 - FEWEST_CASES


class Clock:
    """A clock that stands still but for what a test adds; too many looks when late are errors."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = 0

    def monotonic(self) -> float:
        self.looks += self.now > MOST_SECONDS
        assert self.looks < 100, "the search goes on after its time"
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(budget_module, "time", made)
    monkeypatch.setattr(experiment_module, "time", made)
    return made


@pytest.mark.parametrize("slow", range(4, 25, 5))
def test_a_search_ends_when_its_time_is_over(clock: Clock, slow: int) -> None:
    """Whenever a case takes longer than the whole search may: the first ones were quick."""
    calls = 0

    def op(a: Array, b: Array) -> Array:
        nonlocal calls
        calls += 1
        if calls >= slow + 24:  # 24 known cases
            clock.now += MOST_SECONDS + 1
        return last_column(a, b)

    cause, bench = experiment(op)
    assert bench.calls <= slow + 2
    assert cause is None


def test_a_search_ends_when_each_case_takes_too_long(clock: Clock) -> None:
    def op(a: Array, b: Array) -> Array:
        clock.now += SECONDS + 1
        return last_column(a, b)

    cause, bench = experiment(op)
    assert cause is None
    assert bench.calls == 1


def test_drawing_cases_counts_as_time(clock: Clock) -> None:
    drawn = 0

    class Slow(Variants):
        def draw(self, known: Sequence[Case]) -> Iterator[Case]:
            nonlocal drawn
            for case in super().draw(known):
                drawn += 1
                clock.now += 1
                yield case

    experiment(last_column, variants=Slow)
    assert MOST_SECONDS <= drawn <= MOST_SECONDS + 5


def test_causes_travel_as_json() -> None:
    cause, _ = experiment(last_column)
    assert cause is not None
    assert Cause.from_json(cause.to_json()) == cause


BOUNDS = {
    "an element of most inputs": (Predicate("lowest_below", "a", 10.0), True),
    "an element of most inputs, too": (Predicate("largest_above", "a", -3.0), True),
    "a low element": (Predicate("lowest_below", "a", -3.0), False),
    "a high element": (Predicate("largest_above", "a", 90.0), False),
    "a zero": (Predicate("lowest_below", "a", 0.0), False),
    "a size": (Predicate("above", "N", 32), False),
    "two strategies": (Predicate("strategy", "a", ("wide", "zeros")), False),
    "four strategies": (Predicate("strategy", "a", ("wide", "zeros", "small", "ties")), True),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_what_says_next_to_nothing_is_vague(name: str) -> None:
    predicate, vague = BOUNDS[name]
    hypothesis = Hypothesis((predicate,), 1.0, 9, 9, 0, 9, 0.0, 1)
    assert _is_vague(hypothesis) is vague
