"""Conditions are weighed by what the cases say, corrected for how many were tried."""

from __future__ import annotations

import math
import random

import pytest

from gpuemu_flow.cases.facts import CaseFacts
from gpuemu_flow.cases.hypotheses import fisher, holds, hypotheses, most_divided
from gpuemu_flow.cases.measured import facts_of
from gpuemu_flow.cases.op_schema import BUILTIN_SCHEMAS
from gpuemu_flow.cases.plan import plan_cases
from gpuemu_flow.cases.predicates import Predicate
from gpuemu_flow.cases.variants import Variants
from gpuemu_flow.types import STRATEGIES

LAYOUTS = ("contiguous", "strided", "transposed", "offset")


@pytest.fixture(scope="module")
def facts() -> list[CaseFacts]:
    cases = plan_cases(
        BUILTIN_SCHEMAS["matmul"],
        seed=3,
        dtype="float32",
        count=80,
        strategies=STRATEGIES,
        layouts=LAYOUTS,
    )
    return [facts_of(case) for case in cases if case.numel < 1 << 15]


@pytest.mark.parametrize(
    "cause",
    [
        Predicate("not_multiple", "K", 8),
        Predicate("above", "N", 64),
        Predicate("holds", "a", "nan"),
        Predicate("holds", "b", "scattered"),
        Predicate("strategy", "a", ("ties",)),
        Predicate("equal", "K", "N"),
    ],
    ids=lambda predicate: predicate.sentence,
)
def test_the_condition_that_decides_is_the_heaviest(
    facts: list[CaseFacts], cause: Predicate
) -> None:
    fails = [cause.holds(each) for each in facts]
    assert any(fails) and not all(fails)
    best = hypotheses(facts, fails)[0]
    assert [holds(best.predicates, each) for each in facts] == fails
    assert best.outside_failed == 0 and best.inside_failed == best.inside


def test_of_failures_at_random_no_condition_is_significant(facts: list[CaseFacts]) -> None:
    for seed in range(5):
        draw = random.Random(seed)
        fails = [draw.random() < 0.3 for _ in facts]
        assert all(hypothesis.chance > 1e-3 for hypothesis in hypotheses(facts, fails))


def test_fishers_lady_tasting_tea() -> None:
    assert fisher(4, 4, 0, 4) == pytest.approx(1 / 70)
    assert fisher(3, 4, 1, 4) == pytest.approx(17 / 70)
    assert fisher(0, 4, 4, 4) == 1.0


def test_the_next_case_is_one_that_rivals_disagree_on(facts: list[CaseFacts]) -> None:
    cause = Predicate("above", "N", 64)
    few = facts[:6]
    found = hypotheses(few, [cause.holds(each) for each in few])
    place = most_divided(found, facts)
    assert place is not None
    told = [holds(hypothesis.predicates, facts[place]) for hypothesis in found]
    assert any(told) and not all(told)


@pytest.mark.parametrize(
    "predicate",
    [
        Predicate("strategy", "x", ("ties", "wide")),
        Predicate("above", "N", 64),
        Predicate("magnitude_above", "x", 88.5),
        Predicate("equal", "M", "N"),
        Predicate("holds", "", "nan"),
    ],
)
def test_conditions_travel_as_json(predicate: Predicate) -> None:
    assert Predicate.from_json(predicate.to_json()) == predicate


def test_new_cases_vary_every_dim_by_itself_and_are_the_same_again() -> None:
    def drawn() -> list:
        schema = BUILTIN_SCHEMAS["matmul"]
        variants = Variants(schema, "float32", STRATEGIES, LAYOUTS, 5, 1 << 14)
        return [case for case, _ in zip(variants.draw([]), range(200), strict=False)]

    cases = drawn()
    assert cases == drawn()
    assert all(math.prod(spec.shape) <= 1 << 14 for case in cases for spec in case.inputs)
    for first, second in (("M", "K"), ("K", "N"), ("M", "N")):
        odd = {(dict(c.dims)[first] % 2, dict(c.dims)[second] % 2) for c in cases}
        large = {(dict(c.dims)[first] > 64, dict(c.dims)[second] > 64) for c in cases}
        assert len(odd) == 4 and len(large) == 4
