"""Cases that wait to be run, grouped by the parts of a condition that they meet."""

from __future__ import annotations

from collections.abc import Sequence

from gpuemu_flow.cases.facts import CaseFacts
from gpuemu_flow.cases.predicates import Predicate
from gpuemu_flow.types import Case

Quadrant = tuple[bool, ...]


class Waiting:
    """Cases that wait to be run, grouped into quadrants.

    Cases are in the same quadrant if they meet the same parts of a condition, which has one or two
    parts.

    Parameters
    ----------
    predicates : sequence of Predicate
        The condition's parts.
    """

    def __init__(self, predicates: Sequence[Predicate]) -> None:
        self._predicates = tuple(predicates)
        self._cases: dict[Quadrant, list[tuple[Case, CaseFacts]]] = {}
        self._tried: dict[Quadrant, int] = {}

    def _of(self, facts: CaseFacts) -> Quadrant:
        return tuple(predicate.holds(facts) for predicate in self._predicates)

    def add(self, case: Case, facts: CaseFacts) -> None:
        """Add a case that waits to be run."""
        self._cases.setdefault(self._of(facts), []).append((case, facts))

    def take(self, inside: bool, *, any_of: bool = False) -> tuple[Case, CaseFacts] | None:
        """Return a waiting case, or None if there is none.

        Parameters
        ----------
        inside : bool
            True to take a case that meets all parts of the condition. False to take a case from the
            least tried of the other quadrants.
        any_of : bool
            True to take a case from any other quadrant if no case waits in the least tried one.
        """
        if inside:
            wanted: list[Quadrant] = [tuple(True for _ in self._predicates)]
        else:
            wanted = sorted(self._outer(), key=lambda each: (self._tried.get(each, 0), each))
            wanted = wanted if any_of else wanted[:1]
        for quadrant in wanted:
            if self._cases.get(quadrant):
                return self._cases[quadrant].pop(0)
        return None

    def count(self, facts: CaseFacts) -> None:
        """Add one to the number of judged cases in the quadrant to which a case's facts belong."""
        quadrant = self._of(facts)
        self._tried[quadrant] = self._tried.get(quadrant, 0) + 1

    def each_tried(self, least: int) -> bool:
        """Tell whether, for each part of the condition, enough judged cases meet only this part.

        Enough means at least `least` cases. The result is True for a condition with a single part.
        """
        alone = [quadrant for quadrant in self._outer() if any(quadrant)]
        return all(self._tried.get(quadrant, 0) >= least for quadrant in alone)

    def _outer(self) -> list[Quadrant]:
        if len(self._predicates) == 1:
            return [(False,)]
        return [(True, False), (False, True), (False, False)]
