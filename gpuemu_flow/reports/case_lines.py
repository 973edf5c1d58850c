"""Describe a failing case in one line, and count cases of the same kind by cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gpuemu_flow.results.document import Report, kind_of
from gpuemu_flow.results.model import CaseFailure
from gpuemu_flow.types import Verdict

MAX_LINE = 220

Kind = tuple[str, str, str]
"""Op, dtype and kind of failure."""


def kind_key(failure: CaseFailure) -> Kind:
    """Return the op, dtype and kind of a failing case: the key for grouping cases."""
    return failure.op, failure.case.dtype, kind_of(failure)


def count_causes(report: Report) -> Mapping[Kind, Counter[str]]:
    """Count the failing cases of each kind by cause; '' stands for an unknown cause."""
    found: dict[Kind, Counter[str]] = {}
    for failure in report.run.failures:
        cause = report.causes.get(report.key(failure), "")
        found.setdefault(kind_key(failure), Counter())[cause] += 1
    return found


def is_common(cause: str, counts: Counter[str]) -> bool:
    """Tell whether at least half of the cases in `counts` have this cause."""
    return 2 * counts[cause] >= counts.total()


def describe_failure(report: Report, failure: CaseFailure, counts: Counter[str]) -> str:
    """Describe a failing case in one line: its cause, then its diagnosis or first message.

    The cause is left out if it is unknown, or if fewer than half of the cases in `counts` have it.
    """
    result = failure.result
    cause = report.causes.get(report.key(failure), "")
    said = result.failures[0].message if result.failures else ""
    # A diagnosis is shorter than numbers of elements, and more informative.
    told = result.notes if result.verdict is Verdict.FAILED else ()
    text = " ".join((told[0] if told else said).split())
    if cause and is_common(cause, counts):
        text = f"{cause}: {text}" if text else cause
    return one_line(text)


def one_line(text: str) -> str:
    """Fold a text to one line of at most `MAX_LINE` characters."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_LINE else text[: MAX_LINE - 1] + "…"
