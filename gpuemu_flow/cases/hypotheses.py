"""Hypotheses about a cause: the conditions that the cases support, and the case to try next.

Each condition is a hypothesis: the op fails where the condition holds, and nowhere else. A few
cases may contradict this, such as cases in which the bug does not show.

The weight of a hypothesis is its prior weight times the likelihood of the verdicts (Bayes' rule).
The next case to try is the one that divides the weights most evenly (after MacKay,
"Information-based objective functions for active data selection", Neural Computation 4, 1992).

In the end, a condition is judged by Fisher's exact test (R. A. Fisher, "The Design of Experiments",
1935). Bonferroni's correction (C. E. Bonferroni, 1936) accounts for the number of conditions tried;
see `Hypothesis.tried`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.cases.facts import CaseFacts
from gpuemu_flow.cases.predicates import BOTH, Predicate, bounds_tried, candidates, prior
from gpuemu_flow.quick_dataclass import dataclass

PAIRED = 40
"""Number of conditions with the most weight that are paired with each other."""
MOST = 60

TELLING = 0.12
"""Least share of cases outside of a condition that is paired with others. A condition with fewer
cases outside says next to nothing: those that pass there may be too small to go wrong."""

HIDDEN, STRAY = 0.08, 0.02
"""Chances that a case inside of the true condition passes, and that a case outside of it fails."""

ALMOST_SURE = 0.95


@dataclass(frozen=True)
class Hypothesis:
    """A condition (one predicate, or two together), weighed by the cases judged so far.

    A case is inside if the condition holds for it.

    Attributes
    ----------
    predicates : tuple of Predicate
    weight : float
        Share of the sum of all weights; see the module.
    inside_failed, inside, outside_failed, outside : int
        Numbers of cases.
    chance : float
        The p-value of Fisher's exact test, corrected for the number of conditions; at most 1.
    tried : int
        The number of conditions tried, by which the p-value is multiplied. Let n be the number of
        single predicates (those that hold for the same cases count as one), plus the number of
        thresholds from which the predicates' thresholds were chosen. For a condition of one
        predicate, `tried` is n. For a condition of two predicates, it is half the square of n.
    """

    predicates: tuple[Predicate, ...]
    weight: float
    inside_failed: int
    inside: int
    outside_failed: int
    outside: int
    chance: float
    tried: int

    @property
    def sentence(self) -> str:
        """Return the condition as a sentence for people, without counts."""
        return sentence_of(self.predicates)


def sentence_of(predicates: Sequence[Predicate]) -> str:
    """Return a sentence that says that all predicates hold.

    The sentence is meant for people, and does not state numbers of cases.
    """
    return " and ".join(predicate.sentence for predicate in predicates)


def holds(predicates: Sequence[Predicate], facts: CaseFacts) -> bool:
    """Tell whether all of the predicates hold for a case."""
    return all(predicate.holds(facts) for predicate in predicates)


def hypotheses(facts: Sequence[CaseFacts], fails: Sequence[bool]) -> list[Hypothesis]:
    """Return the conditions that the verdicts support, largest weight first, at most `MOST`.

    Parameters
    ----------
    facts : sequence of CaseFacts
    fails : sequence of bool
        For each case, True if it failed.
    """
    failed = np.asarray(fails, bool)
    options: dict[tuple[Predicate, ...], NDArray[np.bool_]] = {}
    for predicate in candidates(facts, fails):
        inside = np.fromiter((predicate.holds(each) for each in facts), bool, len(facts))
        if inside.any() and not inside.all():
            options.setdefault((predicate,), inside)
    if not options:
        return []
    single = len({inside.tobytes() for inside in options.values()}) + bounds_tried(facts)
    weights = {
        predicates: prior(predicates[0]) + _likelihood(inside, failed)
        for predicates, inside in options.items()
    }
    ranked = sorted(weights, key=lambda each: (-weights[each], repr(each)))
    # A second condition only narrows the first one, so each must hold for every failing case.
    wide = [
        each
        for each in ranked
        if not (failed & ~options[each]).any()
        and np.count_nonzero(~options[each]) >= TELLING * len(facts)
    ][:PAIRED]
    for place, first in enumerate(wide):
        for second in wide[place + 1 :]:
            both = options[first] & options[second]
            narrower = (both != options[first]).any() and (both != options[second]).any()
            if narrower and both.any():
                pair = (*first, *second)
                options[pair] = both
                weights[pair] = (
                    prior(first[0]) + prior(second[0]) + BOTH + _likelihood(both, failed)
                )
    top = max(weights.values())
    total = sum(math.exp(weight - top) for weight in weights.values())
    ranked = sorted(weights, key=lambda each: (-weights[each], repr(each)))[:MOST]
    return [
        _hypothesis(
            each,
            options[each],
            failed,
            math.exp(weights[each] - top) / total,
            single ** len(each) // len(each),
        )
        for each in ranked
    ]


def _likelihood(inside: NDArray[np.bool_], failed: NDArray[np.bool_]) -> float:
    counts = (
        (np.count_nonzero(inside & failed), 1.0 - HIDDEN),
        (np.count_nonzero(inside & ~failed), HIDDEN),
        (np.count_nonzero(~inside & failed), STRAY),
        (np.count_nonzero(~inside & ~failed), 1.0 - STRAY),
    )
    return float(sum(number * math.log(chance) for number, chance in counts))


def _hypothesis(
    predicates: tuple[Predicate, ...],
    inside: NDArray[np.bool_],
    failed: NDArray[np.bool_],
    weight: float,
    tried: int,
) -> Hypothesis:
    number, within = int(inside.sum()), int((inside & failed).sum())
    outside, beyond = int((~inside).sum()), int((~inside & failed).sum())
    chance = min(1.0, fisher(within, number, beyond, outside) * tried)
    return Hypothesis(predicates, weight, within, number, beyond, outside, chance, tried)


def chance_of(
    predicates: Sequence[Predicate], facts: Sequence[CaseFacts], fails: Sequence[bool], tried: int
) -> float:
    """Return the p-value of Fisher's test for a condition, corrected for `tried` conditions."""
    inside = np.fromiter((holds(predicates, each) for each in facts), bool, len(facts))
    return _hypothesis(tuple(predicates), inside, np.asarray(fails, bool), 0.0, tried).chance


def fisher(inside_failed: int, inside: int, outside_failed: int, outside: int) -> float:
    """Return the one-sided p-value of Fisher's exact test for a condition.

    It is the probability that, by chance, the condition holds for at least `inside_failed` of the
    failed cases: the upper tail of the hypergeometric distribution.

    Parameters
    ----------
    inside_failed, inside : int
        Numbers of cases for which the condition holds: those that failed, and all.
    outside_failed, outside : int
        The same numbers for the cases for which the condition does not hold.
    """
    failed, total = inside_failed + outside_failed, inside + outside
    ways = math.comb(total, inside)
    tail = sum(
        math.comb(failed, k) * math.comb(total - failed, inside - k)
        for k in range(inside_failed, min(failed, inside) + 1)
    )
    return tail / ways


def most_divided(found: Sequence[Hypothesis], pool: Sequence[CaseFacts]) -> int | None:
    """Return the index in `pool` of the case on which the hypotheses disagree most.

    The result is None if they all predict the same verdicts.
    """
    if not found or not pool:
        return None
    total = sum(belief.weight for belief in found)
    best, best_doubt = None, 1e-3
    for place, facts in enumerate(pool):
        inside = sum(b.weight for b in found if holds(b.predicates, facts)) / total
        doubt = min(inside, 1.0 - inside)
        if doubt > best_doubt:
            best, best_doubt = place, doubt
    return best
