"""Format mutation scores and coverage as readable text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import to_builtins

from gpuemu_flow.cases.coverage import Coverage, Gap, Row, table
from gpuemu_flow.numerics.output_mutants import MutationScore
from gpuemu_flow.numerics.trivial import TrivialReport
from gpuemu_flow.reports.text import Style, plural, printable
from gpuemu_flow.types import Json


class Mutated(Protocol):
    """The data that the writer needs about a mutation measurement."""

    @property
    def op(self) -> str: ...
    @property
    def score(self) -> MutationScore: ...
    @property
    def trivial(self) -> TrivialReport: ...
    @property
    def cases(self) -> int: ...
    @property
    def kernel(self) -> MutationScore | None: ...
    @property
    def kernel_untold(self) -> int: ...


def _scored(score: MutationScore, what: str, cases: int) -> list[str]:
    """Format the share of planted bugs that was found, and list the bugs that survived.

    Parameters
    ----------
    score : MutationScore
    what : str
        Words for one bug, such as ``planted PTX bug``.
    cases : int
        Number of cases on which the bugs were tried.
    """
    total = len(score.killed) + len(score.survivors)
    lines = [
        f"{len(score.killed)} of {plural(total, what)} "
        f"found on {plural(cases, 'case')} ({score.share:.0%})"
    ]
    for survivor in score.survivors:
        lines.append(
            f"  survives: {survivor.name} ({survivor.kind}): {survivor.why}; "
            f"applied in {plural(survivor.cases, 'case')}"
        )
    return lines


def render_mutation(found: Mutated, style: Style) -> str:
    """Format the score, the bugs that survived, and the trivial candidates that passed."""
    score = found.score
    total = len(score.killed) + len(score.survivors)
    name = style.paint(printable(found.op), "1")
    if not total:
        why = "no case has a finite value to compare" if not found.cases else "none applies"
        return f"{name}: no bug could be planted in {plural(found.cases, 'case')}: {why}"
    lines = _scored(score, "planted bug", found.cases)
    lines[0] = f"{name}: {lines[0]}"
    if found.kernel is not None:
        told = found.cases - found.kernel_untold
        first, *rest = _scored(found.kernel, "planted PTX bug", told)
        lines += [f"{name}, the kernel: {first}", *rest]
    if found.kernel_untold:
        left_out = plural(found.kernel_untold, "case")
        lines.append(
            f"{name}, the kernel: {left_out} left out, as it does not pass as it is; fix it first"
        )
    if score.not_applicable:
        lines.append(f"  not applicable to this op: {', '.join(score.not_applicable)}")
    for name in found.trivial.accepted:
        strategies = ", ".join(found.trivial.weak_strategies[name])
        word = style.paint("too weak", "31;1")
        lines.append(f"  {word}: {name} passes every case on which it is wrong ({strategies})")
    partly = [n for n, count in found.trivial.passed.items() if count]
    for name in partly:
        if name not in found.trivial.accepted:
            tried, passed = found.trivial.tried[name], found.trivial.passed[name]
            strategies = ", ".join(found.trivial.weak_strategies[name])
            lines.append(f"  {name} passes {passed} of {tried} cases ({strategies})")
    return "\n".join(lines)


class CoverageFigures(Protocol):
    """The data that the writers need about a coverage measurement."""

    @property
    def coverage(self) -> Coverage: ...
    @property
    def rows(self) -> Sequence[Row]: ...
    @property
    def gaps(self) -> Sequence[Gap]: ...


def render_coverage(found: CoverageFigures) -> str:
    """Format the coverage as a table, and list the gaps."""
    lines = table(found.rows)
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    shown = [
        "  ".join(
            cell.ljust(width) if n < 2 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    for gap in found.gaps:
        missing = ", ".join(gap.missing)
        shown.append(f"gap: {gap.op} {gap.dtype}: {gap.aspect.replace('_', ' ')} {missing}")
    return "\n".join(shown)


def coverage_to_json(found: CoverageFigures, form: str) -> dict[str, Json]:
    """Return the JSON of ``coverage``, in Codecov's format if `form` is ``codecov``."""
    ops = sorted({row.op for row in found.rows})
    covered = [op for op in ops if any(row.op == op and row.cases for row in found.rows)]
    percent = 100.0 * len(covered) / len(ops) if ops else 0.0
    if form == "codecov":
        lines = {f"gpuemu/{op}.op": {"1": int(op in covered)} for op in ops}
        summary = f"{len(covered)} of {len(ops)} ops exercised"
        return {"coverage": lines, "messages": {"gpuemu_summary": summary}}
    return {
        "schema_version": 1,
        "covered": covered,
        "uncovered": [op for op in ops if op not in covered],
        "configured_total": len(ops),
        "percent": percent,
        "rows": [
            {"op": r.op, "dtype": r.dtype, "cases": r.cases, "unjudged": r.unjudged,
             "seen": {name: list(pair) for name, pair in r.seen.items()}}
            for r in found.rows
        ],
        "gaps": to_builtins(found.gaps),
        "cells": found.coverage.to_json(),
    }  # fmt: skip
