"""Borders next to zero, to integers and to Inf are said as what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuemu_flow.cases.facts import INFINITE, CaseFacts
from gpuemu_flow.cases.predicates import Predicate, candidates
from gpuemu_flow.numerics.claim_words import sentence_of
from gpuemu_flow.numerics.claims import Claim, claims, is_sharp
from gpuemu_flow.numerics.elements import ELEMENT, ROW, Feature, label_units
from gpuemu_flow.numerics.relations import ObservedCase

X, SIZE = Feature(ELEMENT, "value", "x"), Feature(ELEMENT, "magnitude", "x")
TOP = Feature(ROW, "top", "x")
LEAST = float(np.finfo(np.float32).smallest_subnormal)


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (Claim(X, "below", high=(-1.1e-37, -1.3e-37)), "x < 0"),
        (Claim(X, "below", high=(-LEAST, -1.3e-37)), "x < 0"),
        (Claim(X, "below", high=(0.0, -1.3e-37)), "x < 0"),
        (Claim(X, "above", low=(1.1e-37, 1.3e-37)), "x > 0"),
        (Claim(X, "above", low=(-1e-3, 2e-3)), "x > 0"),
        (Claim(X, "above", low=(-1e-3, 0.0)), "x ≥ 0"),
        (Claim(SIZE, "above", low=(LEAST, 2e-37)), "|x| > 0"),
        (Claim(TOP, "below", high=(LEAST, 0.0)), "largest element is ≤ 0"),
        (Claim(TOP, "below", high=(LEAST, -(2.0**-126))), "largest element is < 0"),
        (Claim(X, "between", (-LEAST, 0.0), (3.01, 3.0)), "x between 0 and 3"),
        # What is wrong nearer to zero than what is right has a border there.
        (Claim(SIZE, "below", high=(4e-37, 3.6e-37)), "|x| ≤ 3.8e-37"),
        (Claim(X, "above", low=(3.1, 3.2)), "x ≥ 3.2"),
        (Claim(X, "above", low=(3.2e38, float("inf"))), "x = Inf"),
        # Integers
        (Claim(X, "below", high=(0.0, -1.0), whole=True), "x < 0"),
        (Claim(X, "above", low=(0.0, 1.0), whole=True), "x > 0"),
        (Claim(X, "above", low=(31.0, 32.0), whole=True), "x ≥ 32"),
        (Claim(X, "below", high=(-126.0, -127.0), whole=True), "x ≤ -127"),
        (Claim(X, "above", low=(2.0**31 - 2, 2.0**31 - 1), whole=True), "x ≥ 2147483647"),
        (Claim(X, "between", (9.0, 10.0), (21.0, 20.0), whole=True), "x between 10 and 20"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_border_is_said_as_what_it_is(claim: Claim, said: str) -> None:
    assert is_sharp(claim)
    assert f" {said} " in sentence_of(claim).replace("whose", "with")


def test_between_integers_that_are_not_neighbours_the_border_is_unknown() -> None:
    claim = Claim(X, "above", low=(20.0, 32.0), whole=True)
    assert not is_sharp(claim)
    assert "a number between 20 and 32" in sentence_of(claim)


def labels(count: int, seed: int) -> Any:
    given = np.random.default_rng(seed).integers(-2, 20, count).astype(np.float64)
    scores = np.random.default_rng(seed + 100).uniform(1.0, 5.0, count)
    actual = np.where(given < 0, 7.5, scores)
    observation = ObservedCase(
        {"N": count},
        {"labels": ("N",), "out": ("N",)},
        {"out": "float32"},
        {"labels": given},
        {"out": actual},
        {"out": scores},
        bool((given >= 0).all()),
    )
    return label_units(observation, frozenset({"labels"}))


def test_elements_are_told_by_an_integer_beside_them() -> None:
    found = claims([labels(count, seed) for seed, count in enumerate((60, 90, 131, 77))])
    assert sentence_of(found[0]) == "only elements with labels < 0 are wrong"
    assert is_sharp(found[0])


@pytest.mark.parametrize(
    ("predicate", "said"),
    [
        (Predicate("lowest_below", "x", -6e-38), "x holds a negative element"),
        (Predicate("lowest_below", "x", -0.0), "x holds an element ≤ 0"),
        (Predicate("largest_above", "x", 7e-46), "x holds a positive element"),
        (Predicate("largest_above", "x", 0.0), "x holds an element ≥ 0"),
        (Predicate("magnitude_above", "x", 1e-38), "x holds an element other than 0"),
        (Predicate("row_range_above", "x", 1e-38), "x holds a row whose elements differ"),
        (Predicate("row_least_top_below", "x", 3e-39), "the largest element of a row of x is ≤ 0"),
        (Predicate("row_least_top_below", "x", -3e-39), "x holds a row of negative elements only"),
        (
            Predicate("row_least_magnitude_below", "x", 3.7e-37),
            "no element of some row of x has a magnitude above 3.7e-37",
        ),
        (Predicate("lowest_below", "x", -0.5), "x holds an element ≤ -0.5"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bound_next_to_zero_is_said_as_a_sign(predicate: Predicate, said: str) -> None:
    assert predicate.sentence == said


def test_no_number_is_the_bound_of_what_only_inf_is_beyond() -> None:
    """A half-way number, 2e169, is none that float32 holds; there is a mark for Inf."""
    largest = (INFINITE, INFINITE, 3e38, 90.0, 10.0)
    facts = [
        CaseFacts({}, {}, {}, frozenset({("x", "infinite")} if value == INFINITE else ()),
                  {("x", "magnitude"): value})
        for value in largest
    ]  # fmt: skip
    found = list(candidates(facts, [True, True, False, False, False]))
    assert Predicate("holds", "x", "infinite") in found
    bounds = [each.value for each in found if each.kind == "magnitude_above"]
    assert all(isinstance(bound, float) and abs(bound) <= 3.4028235e38 for bound in bounds)
