"""Confirm a cause by new cases, which are chosen to distinguish possible causes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile

from gpuemu_flow.cases.cause import Cause, Counts, RelationName
from gpuemu_flow.cases.facts import ELEMENTS, CaseFacts
from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.cases.generated_values import is_made
from gpuemu_flow.cases.hypotheses import (
    ALMOST_SURE,
    TELLING,
    Hypothesis,
    chance_of,
    fisher,
    holds,
    hypotheses,
    most_divided,
    sentence_of,
)
from gpuemu_flow.cases.measured import facts_of
from gpuemu_flow.cases.predicates import TINY, Predicate
from gpuemu_flow.cases.variants import Variants
from gpuemu_flow.fuzz.budget import Budget
from gpuemu_flow.fuzz.claim_search import Arrays, ClaimSearch
from gpuemu_flow.fuzz.fillings import fillings
from gpuemu_flow.fuzz.quadrants import Waiting
from gpuemu_flow.fuzz.relation_search import CONTRADICTED, PLAIN, RelationSearch, Tried
from gpuemu_flow.fuzz.thresholds import with_exact_numbers
from gpuemu_flow.types import Case

POOL = 48
"""Number of new cases that are drawn for each case that is run."""

EXPLORED = 0.35
"""Share of the budget for distinguishing conditions; the rest is for confirming one condition."""

FEWEST = 6
"""Minimum number of new cases inside of a condition, and outside of it, to confirm it."""

MOST_SEEN = 3
MOST_CHANCE = 0.01
"""Maximum probability that a confirmed condition is due to chance. It is computed over all cases,
corrected for the number of conditions, and over the new cases, corrected for the number of tested
conditions."""

INSIDE_FAILED = 0.85
RELATED = 0.9
"""Minimum share of the new cases that meet a condition and fail, and minimum share of the failing
cases that a relation explains."""

STRATEGIES_MORE = 3
LARGE = 2
"""Number of large failing cases that a relation has to explain to be confirmed."""

QUADRANT = 2
"""Minimum number of new cases that meet only one part of a condition, for each of its parts."""

MOST_STRATEGIES = 3
"""Maximum number of strategies in a cause; longer lists only name those that reveal the bug."""

MOST_FILLED = 1 << 16
CHALLENGED = 2
"""Number of failing cases whose inputs are filled with new values to challenge a condition."""

MOST_PASSING_INSIDE = 0.3
"""Maximum share of passing cases among cases whose inputs are filled to meet a condition."""

MOST_UNEXPLAINED = 0.1
"""Maximum share of passing cases among cases with plain values that meet a condition on sizes."""

PATIENCE = 12
"""Number of pools that are drawn to find a case that meets, or does not meet, a condition."""


Try = Callable[[Case, Arrays | None], Tried]


class Experiment:
    """Looks for the cause of one op's failures in one dtype.

    Parameters
    ----------
    variants : Variants
    run : callable
        Judges a case, on the inputs that it describes or on given inputs.
    relations : RelationSearch
        Tests relations between wrong and correct outputs.
    budget : Budget
    failing, passing : sequence of Case
        Cases judged so far.
    """

    def __init__(
        self,
        variants: Variants,
        run: Try,
        relations: RelationSearch,
        budget: Budget,
        failing: Sequence[Case],
        passing: Sequence[Case],
    ) -> None:
        self._variants = variants
        self._run = run
        self._relations = relations
        self._budget = budget
        self._failing = list(failing)
        self._passing = list(passing)
        self._facts: list[CaseFacts] = []
        self._fails: list[bool] = []
        self._tested = 0
        self._already_run: set[int] = set()
        self._claims = ClaimSearch(relations, self._try_on)
        for case, failed in ((c, f) for cs, f in ((failing, True), (passing, False)) for c in cs):
            self._learn(facts_of(case), failed)
        self._given = len(self._facts)

    def _learn(self, facts: CaseFacts, failed: bool) -> None:
        self._facts.append(facts)
        self._fails.append(failed)

    def _try(self, case: Case, facts: CaseFacts | None = None) -> Tried | None:
        if not self._budget.take():
            return None
        begin = time.monotonic()
        tried = self._run(case, None)
        self._budget.took(time.monotonic() - begin)
        self._already_run.add(case.seed)
        if tried.failed is not None:
            self._learn(facts or facts_of(case), tried.failed)
            if tried.failed:
                self._failing.append(case)
        return tried

    def cause(self) -> Cause | None:
        """Return a cause that new cases confirm; None if they confirm no cause.

        Relations that explain the outputs are tried first, then claims about wrong elements, and
        then conditions that the failing cases share.
        """
        return self._relation() or self._claim() or self._condition()

    # Claims

    def _claim(self) -> Cause | None:
        """Find a property, such as an index above 64, that separates wrong from right elements."""
        failing, passing = (
            [case for case in cases if case.seed not in self._already_run]
            for cases in (self._failing, self._passing)
        )
        return self._claims.cause(failing, passing, self._variants.like(self._failing[:8]))

    def _try_on(self, case: Case, inputs: Arrays | None) -> Tried | None:
        if inputs is None:
            return self._try(case)
        if not self._budget.take():
            return None
        begin = time.monotonic()
        tried = self._run(case, inputs)
        self._budget.took(time.monotonic() - begin)
        return tried

    # Relations

    def _relation(self) -> Cause | None:
        """Find a relation that all failing cases with plain values share."""
        chosen = self._relations.candidates(self._failing)
        for case in chosen:
            tried = self._try(case)
            if tried is None:
                return None
            self._claims.observe(tried)
            if tried.failed:
                self._relations.observe(tried)
        self._relations.weigh(self._passing)
        spared = self._relations.candidates(self._passing)[:1] + self._largest(self._passing)
        for case in spared[:CONTRADICTED]:
            tried = self._try(case) if self._relations.left else None
            if tried is None:
                break
            self._claims.observe(tried)
            self._relations.spared(tried)
        if not self._relations.left:
            return None
        counts = self._confirm_relation(self._of_each_strategy(chosen))
        self._contradict_by_large_ones()
        relation = self._relations.best()
        enough = counts.inside >= self._relations.enough
        if relation is None or not enough or counts.inside_failed < RELATED * counts.inside:
            return None
        named = RelationName(relation.kind, relation.subject, relation.formula)
        return Cause(True, relation.sentence, relation=named, counts=counts)

    def _contradict_by_large_ones(self) -> None:
        """Run the largest known failing cases, which contradict more relations than small cases."""
        for case in self._largest(self._failing)[:LARGE]:
            tried = self._try(case) if self._relations.left else None
            if tried is None:
                return
            if tried.failed:
                self._relations.observe(tried)

    def _largest(self, known: Sequence[Case]) -> list[Case]:
        """List the cases with plain values that have not been run yet, largest first."""
        plain = [
            c for c in known if c.seed not in self._already_run and self._relations.is_plain(c)
        ]
        return sorted(plain, key=lambda case: -case.numel)

    def _of_each_strategy(self, chosen: Sequence[Case]) -> list[Case]:
        """Add to the chosen cases a few failing ones with other combinations of strategies."""
        found = {tuple(spec.strategy for spec in case.inputs): case for case in chosen}
        for case in filter(self._relations.is_plain, self._failing):
            found.setdefault(tuple(spec.strategy for spec in case.inputs), case)
        others = [case for case in found.values() if case not in chosen]
        return [*chosen, *others[:STRATEGIES_MORE]]

    def _confirm_relation(self, chosen: Sequence[Case]) -> Counts:
        """Run variants of `chosen` until enough have failed, or every relation is contradicted."""
        fitted = failed = passed = 0
        for case in islice(self._variants.like(chosen), 4 * POOL):
            settled = failed >= self._relations.enough and self._relations.best() is not None
            if settled or max(failed, passed // 2) > 2 * self._relations.enough:
                break
            if not self._relations.is_plain(case):
                continue
            tried = self._try(case)
            if tried is None:
                break
            if tried.failed is None:
                continue
            self._claims.observe(tried)
            fits = self._relations.observe(tried)
            if tried.failed and fits is None:
                continue
            if tried.failed:
                failed, fitted = failed + 1, fitted + bool(fits)
            else:
                passed += 1
            if not self._relations.left:
                break
        return Counts(fitted, failed, 0, passed)

    # Conditions

    def _condition(self) -> Cause | None:
        explore = int(EXPLORED * self._budget.left)
        most = explore
        while explore > 0:
            found = hypotheses(self._facts, self._fails)
            if found and found[0].weight > ALMOST_SURE and explore < most - 3:
                break
            picked = self._divided(found)
            if picked is None or self._try(*picked) is None:
                break
            explore -= 1
        while self._budget.left >= 2 * FEWEST:
            found = hypotheses(self._facts, self._fails)
            if not found:
                return None
            if self._is_trivial(found[0]) or _is_vague(found[0]):
                return None
            self._tested += 1
            counts = self._confirm(found[0])
            if counts is None:
                continue
            if self._challenged(found[0].predicates):
                return None
            exact = self._narrowed(found[0].predicates)
            if exact is None:
                return None
            known = list(zip(self._facts, self._fails, strict=True))
            precise = with_exact_numbers(exact, known, self._probe)
            if precise != exact:
                counts = self._counted(precise)
            return Cause(True, sentence_of(precise), precise, counts=counts)
        return None

    def _challenged(self, predicates: Sequence[Predicate]) -> bool:
        """Tell whether a condition is contradicted by inputs that were made to meet or to break it.

        Each replaces one input of a known failing case. The budget does not count these runs.
        """
        passed = inside = 0
        bases = [c for c in self._failing if is_made(c) and 0 < c.numel <= MOST_FILLED]
        bases = [case for case in bases if holds(predicates, facts_of(case))]
        bases.sort(key=lambda case: (not self._relations.is_plain(case), -min(case.numel, 256)))
        for case in bases[:CHALLENGED]:
            inputs = materialise(case)
            for predicate in predicates:
                given = inputs.get(predicate.subject)
                if given is None:
                    continue
                for expected, values in fillings(predicate, case, given, case.seed):
                    if self._budget.late():
                        return False
                    tried = self._run(case, {**inputs, predicate.subject: values})
                    if tried.failed and not expected:
                        return True
                    if expected and tried.failed is not None:
                        inside, passed = inside + 1, passed + (not tried.failed)
        return passed > MOST_PASSING_INSIDE * inside

    def _narrowed(self, predicates: tuple[Predicate, ...]) -> tuple[Predicate, ...] | None:
        """Add "a dim is above 1" to a condition on sizes if new cases with size 1 pass.

        Return the condition with any added parts. Return None instead if none was added, all parts
        are about sizes, and too many cases with ordinary values meet the condition and pass.
        """
        known = [
            (facts, failed)
            for facts, failed in zip(self._facts, self._fails, strict=True)
            if holds(predicates, facts)
        ]
        taken = {subject for each in predicates for subject in (each.subject, each.value)}
        exact = predicates
        for name in sorted(self._facts[0].sizes) if any(p.of_sizes for p in predicates) else ():
            ones = [failed for facts, failed in known if facts.sizes.get(name) == 1]
            if name in taken or name == ELEMENTS or any(ones):
                continue
            if self._passes_at_one(exact, name):
                exact = (*exact, Predicate("above", name, 1))
                known = [each for each in known if each[0].sizes.get(name) != 1]
        if exact != predicates:
            return exact
        passing = [facts for facts, failed in known if not failed]
        number = sum(_is_plain(facts) for facts, _ in known)
        unexplained = sum(map(_is_plain, passing)) > MOST_UNEXPLAINED * number
        return None if unexplained and all(each.of_sizes for each in predicates) else predicates

    def _passes_at_one(self, predicates: Sequence[Predicate], name: str) -> bool:
        """Tell whether new cases pass if they meet a condition and the dim `name` has size 1.

        Return False if any of them fails, or if too few can be run.
        """
        passed = 0
        for _ in range(PATIENCE // 3):
            for case, facts in self._pool():
                if facts.sizes.get(name) != 1 or not holds(predicates, facts):
                    continue
                if not _is_plain(facts) or case.numel > MOST_FILLED or self._budget.late():
                    continue
                tried = self._run(case, None)
                if tried.failed:
                    return False
                passed += tried.failed is False
                if passed == QUADRANT:
                    return True
        return False

    def _probe(self, predicates: Sequence[Predicate], name: str, size: int) -> bool | None:
        """Tell whether known failing cases still fail when a dim gets another size.

        These runs do not count against the budget.

        Returns
        -------
        bool or None
            None if no case could be run that has this size and meets the predicates.
        """
        found = None
        bases = [case for case in self._failing if is_made(case)]
        bases.sort(key=lambda case: (not self._relations.is_plain(case), -min(case.numel, 256)))
        for base in bases[:CHALLENGED]:
            case = self._variants.resized(base, name, size)
            if case is None or case.numel > MOST_FILLED or self._budget.late():
                continue
            facts = facts_of(case)
            if not holds(predicates, facts):
                continue
            tried = self._run(case, None)
            if tried.failed is not None:
                self._learn(facts, tried.failed)
                found = tried.failed
            if tried.failed:
                return True
        return found

    def _counted(self, predicates: Sequence[Predicate]) -> Counts:
        """Count new cases, and failures among them, inside and outside of a condition."""
        number = {True: 0, False: 0}
        failed = {True: 0, False: 0}
        for facts, bad in list(zip(self._facts, self._fails, strict=True))[self._given :]:
            side = holds(predicates, facts)
            number[side] += 1
            failed[side] += bad
        return Counts(failed[True], number[True], failed[False], number[False])

    def _is_trivial(self, hypothesis: Hypothesis) -> bool:
        """Tell whether nearly all cases meet a condition, so that too few other cases are left."""
        return hypothesis.outside < TELLING * (hypothesis.inside + hypothesis.outside)

    def _pool(self) -> Iterator[tuple[Case, CaseFacts]]:
        drawn = islice(self._variants.draw(self._failing[-40:]), POOL)
        for case in takewhile(lambda _: not self._budget.late(), drawn):  # large cases take long
            yield case, facts_of(case)

    def _divided(self, found: list[Hypothesis]) -> tuple[Case, CaseFacts] | None:
        for _ in range(2):
            pool = list(self._pool())
            if not found:
                return pool[0] if pool else None
            place = most_divided(found, [facts for _, facts in pool])
            if place is not None:
                return pool[place]
        return None

    def _confirm(self, hypothesis: Hypothesis) -> Counts | None:
        """Run new cases that alternately meet a condition and do not, and count the results.

        Return None if the results do not confirm the condition. If the condition has two parts, the
        cases that do not meet it are of three kinds: they meet only the first part, only the
        second, or neither.
        """
        number = {True: 0, False: 0}
        failed = {True: 0, False: 0}
        most = self._budget.left // 2
        side = True
        waiting = Waiting(hypothesis.predicates)
        for _ in range(2 * most):
            picked = self._inside(side, waiting)
            if picked is None:
                break
            tried = self._try(*picked)
            if tried is None:
                break
            if tried.failed is not None:
                number[side] += 1
                failed[side] += tried.failed
                waiting.count(picked[1])
            if failed[False] or failed[True] < INSIDE_FAILED * number[True] - 1.5:
                return None
            side = not side
        counts = Counts(failed[True], number[True], failed[False], number[False])
        fresh = fisher(failed[True], number[True], 0, number[False]) * self._tested
        overall = chance_of(hypothesis.predicates, self._facts, self._fails, hypothesis.tried)
        enough = min(number.values()) >= FEWEST and max(fresh, overall) <= MOST_CHANCE
        enough = enough and waiting.each_tried(QUADRANT)
        return counts if enough and failed[True] >= INSIDE_FAILED * number[True] else None

    def _inside(self, side: bool, waiting: Waiting) -> tuple[Case, CaseFacts] | None:
        for _ in range(PATIENCE):
            picked = waiting.take(side)
            if picked is not None:
                return picked
            for case, facts in self._pool():
                waiting.add(case, facts)
        return waiting.take(side, any_of=True)

    def seen_with(self) -> list[Cause]:
        """List a few features that are more frequent in failing cases than in passing cases.

        The features that are least likely due to chance come first. For each subject, such as a dim
        or an input, there is at most one feature.
        """
        found: list[Cause] = []
        subjects: set[tuple[str, ...]] = set()
        for hypothesis in hypotheses(self._facts, self._fails):
            about = tuple(predicate.subject for predicate in hypothesis.predicates)
            if len(found) == MOST_SEEN or hypothesis.chance >= 1.0 or about in subjects:
                continue
            subjects.add(about)
            counts = Counts(
                hypothesis.inside_failed,
                hypothesis.inside,
                hypothesis.outside_failed,
                hypothesis.outside,
            )
            found.append(Cause(False, hypothesis.sentence, hypothesis.predicates, counts=counts))
        return found


def _is_plain(facts: CaseFacts) -> bool:
    """Tell whether a case has only ordinary values."""
    return set(facts.strategies.values()) <= set(PLAIN)


def _is_vague(hypothesis: Hypothesis) -> bool:
    """Tell whether nearly every case meets a condition, so that it explains nothing.

    Vague conditions are a list of nearly all strategies, "an element is below X" with X above zero,
    and "an element is above X" with X below zero: nearly every input has such an element.
    """
    return any(_is_long(each) or _is_beyond_zero(each) for each in hypothesis.predicates)


def _is_long(each: Predicate) -> bool:
    if each.kind != "strategy" or not isinstance(each.value, tuple):
        return False
    return len(each.value) > MOST_STRATEGIES


def _is_beyond_zero(each: Predicate) -> bool:
    if not isinstance(each.value, (int, float)):
        return False
    below, above = each.kind == "lowest_below", each.kind == "largest_above"
    return (below and each.value > TINY) or (above and each.value < -TINY)
