"""Data types for causes of failures, both confirmed causes and merely suspected ones."""

from __future__ import annotations

from dataclasses import field

from gpuemu_flow.cases.predicates import Predicate
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Case, Json

CaseId = tuple[str, int]
"""Dtype and seed of a case."""


def case_id(case: Case) -> CaseId:
    """Return the id, a case's dtype and seed, by which a cause lists the case."""
    return case.dtype, case.seed


@dataclass(frozen=True)
class Counts:
    """Numbers of all cases and of failed cases, inside and outside of a cause's condition.

    A case is inside if the condition holds for it.
    """

    inside_failed: int = 0
    inside: int = 0
    outside_failed: int = 0
    outside: int = 0


@dataclass(frozen=True)
class RelationName:
    """A relation between an op's outputs and the reference's; see `numerics.relations`.

    Attributes
    ----------
    kind, subject, formula : str
    """

    kind: str
    subject: str
    formula: str


@dataclass(frozen=True)
class Cause:
    """One cause of one op's failures.

    Attributes
    ----------
    stated : bool
        True if new cases have confirmed the cause; False if it was only seen with failures.
    sentence : str
        The condition as a sentence for people, without counts.
    predicates : tuple of Predicate
        The condition; empty for a relation.
    relation : RelationName or None
    counts : Counts
        Counts of the new cases if `stated` is true, else of the cases that the run itself judged.
        For a relation, ``inside`` counts the failing cases, ``inside_failed`` those that the
        relation explains, ``outside`` the passing cases, and ``outside_failed`` those that
        contradict the relation.
    members : tuple of (str, int)
        The failing cases that the cause explains, as (dtype, seed).
    """

    stated: bool
    sentence: str
    predicates: tuple[Predicate, ...] = ()
    relation: RelationName | None = None
    counts: Counts = field(default_factory=Counts)
    members: tuple[CaseId, ...] = ()

    @property
    def text(self) -> str:
        """Return the cause as a sentence for people, with counts."""
        n = self.counts
        if not self.stated:
            return f"seen with: {self.counted}"
        if self.relation is not None:
            return (
                f"{self.sentence}, confirmed by {n.inside_failed} of {n.inside} new failing cases"
            )
        return (
            f"fails when {self.sentence}, confirmed by {n.inside_failed} of {n.inside} new cases "
            f"inside, {n.outside_failed} of {n.outside} outside"
        )

    @property
    def counted(self) -> str:
        """Return the sentence, with counts of failed cases inside and outside of the condition."""
        n = self.counts
        others = f", {n.outside_failed} of {n.outside} others" if n.outside else ""
        return f"{self.sentence} ({n.inside_failed} of {n.inside} fail{others})"

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON; `from_json` is its inverse."""
        return {
            "stated": self.stated,
            "sentence": self.sentence,
            "text": self.text,
            "conditions": [predicate.to_json() for predicate in self.predicates],
            "relation": None if self.relation is None else dict(vars(self.relation)),
            "counts": dict(vars(self.counts)),
            "members": [[dtype, str(seed)] for dtype, seed in self.members],
        }

    @classmethod
    def from_json(cls, data: Json) -> Cause:
        """Rebuild from `to_json`'s result, or raise KeyError, TypeError or ValueError."""
        return cls(
            stated=bool(data["stated"]),
            sentence=str(data["sentence"]),
            predicates=tuple(map(Predicate.from_json, data["conditions"])),
            relation=None if data["relation"] is None else RelationName(**data["relation"]),
            counts=Counts(**data["counts"]),
            members=tuple((str(dtype), int(seed)) for dtype, seed in data["members"]),
        )
