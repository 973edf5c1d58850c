"""An experiment states what new cases confirm, within its budget, the same each time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from gpuemu_flow.fuzz.budget import FEWEST_CASES, SECONDS, Budget
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


def experiment(op: Op, budget: int = 40) -> tuple[Cause | None, Bench]:
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
        Variants(SCHEMA, "float32", STRATEGIES, LAYOUTS, 7, 1 << 14),
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
