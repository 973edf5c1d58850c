"""Numbers in a condition on sizes are with_exact_numbers by cases of chosen sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from gpuemu_flow.cases.facts import CaseFacts
from gpuemu_flow.cases.predicates import Predicate
from gpuemu_flow.fuzz.thresholds import MOST_RUNS, with_exact_numbers


def facts(n: int) -> CaseFacts:
    return CaseFacts({"N": n}, {}, {}, frozenset(), {})


class Sizes:
    """Judges sizes of one dim, and counts how often it is asked."""

    def __init__(self, fails: Callable[[int], bool], largest: int = 300) -> None:
        self.fails = fails
        self.largest = largest
        self.asked: list[int] = []

    def __call__(self, predicates: Sequence[Predicate], name: str, size: int) -> bool | None:
        fits = all(each.holds(facts(size)) for each in predicates)
        if name != "N" or not 1 <= size <= self.largest or not fits:
            return None
        self.asked.append(size)
        return self.fails(size)


def settle(
    given: Sequence[Predicate], fails: Callable[[int], bool], seen: Sequence[int]
) -> tuple[list[str], Sizes]:
    sizes = Sizes(fails)
    found = with_exact_numbers(given, [(facts(n), fails(n)) for n in seen], sizes)
    assert len(sizes.asked) <= MOST_RUNS
    return [each.sentence for each in found], sizes


ABOVE, AT_MOST = Predicate("above", "N", 96), Predicate("at_most", "N", 64)
NO_TILE, TILE = Predicate("not_multiple", "N", 16), Predicate("multiple", "N", 32)
SEEN = (1, 3, 16, 31, 33, 64, 95, 112, 131, 160, 257, 293, 299)
TRUTHS = {
    "a threshold": ([ABOVE], lambda n: n > 100, ["N is above 100"]),
    "a largest size": ([AT_MOST], lambda n: n <= 70, ["N is at most 70"]),
    "a tile": ([NO_TILE], lambda n: n % 4 > 0, ["N is not a multiple of 4"]),
    "an odd size": ([NO_TILE], lambda n: n % 2 > 0, ["N is odd"]),
    "whole tiles": ([TILE], lambda n: n % 16 == 0, ["N is a multiple of 16"]),
    "what was right": ([NO_TILE], lambda n: n % 16 > 0, ["N is not a multiple of 16"]),
    "both": (
        [ABOVE, NO_TILE],
        lambda n: n > 100 and n % 8 > 0,
        ["N is above 100", "N is not a multiple of 8"],
    ),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_the_numbers_become_those_of_the_bug(name: str) -> None:
    given, fails, expected = TRUTHS[name]
    assert settle(given, fails, SEEN)[0] == expected


def test_a_threshold_of_a_bug_that_hides_is_one_of_tiles() -> None:
    def hidden(n: int) -> bool:
        return n > 37 and n % 7 > 0

    assert settle([Predicate("above", "N", 48)], hidden, (1, 30, 49, 60, 61, 91, 120))[0] == [
        "N is above 32"
    ]
    assert settle([Predicate("above", "N", 48)], lambda n: n > 37, (1, 30, 49, 60, 61))[0] == [
        "N is above 37"
    ]


def test_other_statements_stay_and_ask_nothing() -> None:
    given = [Predicate("equal", "N", "M"), Predicate("strategy", "x", ("zeros",))]
    assert with_exact_numbers(given, [(facts(3), True)], Sizes(lambda n: True)) == tuple(given)


def test_a_failing_case_outside_of_the_new_numbers_keeps_the_old_ones() -> None:
    def fickle(n: int) -> bool:
        return n in (98, 99) or n > 130

    sentences, sizes = settle([ABOVE], fickle, (90, 99, 131, 200))
    assert sizes.asked
    assert sentences == ["N is above 97"]
    sizes = Sizes(lambda n: n > 130)
    known = [(facts(90), False), (facts(97), True), (facts(200), True)]
    kept = with_exact_numbers([ABOVE], known, sizes)
    assert [each.sentence for each in kept] == ["N is above 96"]


def test_without_a_size_that_can_be_run_nothing_changes() -> None:
    unable = Sizes(lambda n: n > 100, largest=0)
    known = [(facts(n), n > 100) for n in SEEN]
    assert with_exact_numbers([ABOVE, NO_TILE], known, unable) == (ABOVE, NO_TILE)
