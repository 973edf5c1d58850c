"""A cause of failures as data: one condition that new cases have confirmed."""

from __future__ import annotations

import msgspec

from gpuemu_flow.model.types import Case

CaseId = tuple[str, str]
"""Dtype and seed of a case; the seed is text, as JSON readers may round large numbers."""


def case_id(case: Case) -> CaseId:
    """Return the id, a case's dtype and seed, by which a cause lists the case."""
    return case.dtype, str(case.seed)


class Condition(msgspec.Struct, frozen=True):
    """A statement about a case, such as ``N is above 16``; `subject` is a dim or an input."""

    kind: str
    subject: str
    value: int | float | str
    sentence: str


class Counts(msgspec.Struct, frozen=True):
    """Numbers of new cases that meet the condition (inside) and that do not (outside)."""

    inside_failed: int
    inside: int
    outside_failed: int
    outside: int


class Cause(msgspec.Struct, frozen=True):
    """What all failing cases at hand have in common, no passing one has, and new cases
    confirmed. `members` are the failing cases that the cause explains. The struct is also the
    JSON of reports."""

    sentence: str
    text: str
    conditions: tuple[Condition, ...]
    counts: Counts
    members: tuple[CaseId, ...] = ()
    stated: bool = True
