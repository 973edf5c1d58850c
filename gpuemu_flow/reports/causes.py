"""Failing cases of one op, grouped by what they have in common."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuemu_flow.cases.features import group
from gpuemu_flow.reports.model import CaseFailure, OpResult
from gpuemu_flow.types import Case, Verdict

_DIGITS = re.compile(r"\d+")


def causes(results: Sequence[OpResult]) -> list[tuple[list[CaseFailure], str]]:
    """One op's failing cases by cause, smallest case first, and what each cause's cases share."""
    failures = [failure for result in results for failure in result.failures]
    passing = [case for result in results for case in result.passing]
    found: list[tuple[list[CaseFailure], str]] = []
    unlike: dict[tuple[str, str], list[CaseFailure]] = {}
    wrong: dict[Case, CaseFailure] = {}
    for failure in failures:
        if failure.result.verdict is Verdict.FAILED:
            wrong[failure.case] = failure
        else:
            first = failure.result.failures[0] if failure.result.failures else None
            # Messages that differ only in their numbers have one cause.
            detail = _DIGITS.sub("#", first.message) if first is not None else ""
            unlike.setdefault((failure.result.verdict.value, detail), []).append(failure)
    kinds = ((case, failure.result.failures[0].kind) for case, failure in wrong.items())
    for cause in group(kinds, passing):
        sentence = cause.feature.sentence if cause.feature is not None else ""
        found.append(([wrong[case] for case in cause.members], sentence))
    found += [
        (sorted(members, key=lambda f: (f.case.numel, f.case.index)), "")
        for members in unlike.values()
    ]
    return found
