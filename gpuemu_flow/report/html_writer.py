"""Write a report as a self-contained HTML file, without other files or network access."""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpuemu_flow.judge.results import CaseVerdict
from gpuemu_flow.lint.diff import KernelDiff
from gpuemu_flow.lint.kernel import Violation
from gpuemu_flow.model.plain_text import clean, inert_json, inert_markup
from gpuemu_flow.model.types import Json, Verdict
from gpuemu_flow.report import report_text
from gpuemu_flow.report.document import LEVELS, Picture, Report, kind_of
from gpuemu_flow.report.formats import ReaderOptions
from gpuemu_flow.report.report_text import headline
from gpuemu_flow.report.text import (
    duration,
    note_lines,
    number,
    percent,
    plural,
    sandbox_levels,
    share,
    shown_lines,
)

FOLDER = Path(__file__).parent / "html"
MAX_BESIDES = 30
BUDGET = 980_000
"""Size of a page in bytes above which it gets fewer failures."""
_LIMITS = ((40, 200), (40, 50), (30, 20), (20, 0), (10, 0))
"""Maximum numbers of failures and other failing cases, tried in turn until the page is
small enough."""


def write(report: Report, _look: ReaderOptions) -> str:
    """Return the report as a page of HTML."""
    return report_to_html(report)


def report_to_html(report: Report, signer: str = "") -> str:
    """Return the report as a page of HTML."""
    for limits in _LIMITS:
        page = _page(report, signer, limits)
        if len(page.encode("utf-8", "replace")) <= BUDGET:
            break
    return page


def _page(report: Report, signer: str, limits: tuple[int, int]) -> str:
    template, style, script = _parts()
    most, listed = limits
    cards, others = failure_cards(report, most)
    anchors = {(c.failure.op, c.failure.case.dtype): c.anchor for c in reversed(cards)}
    besides = list(failures_besides(report))
    kernels = _kernels(report)
    # The template must not indent the hashed script: the policy allows only exactly this text.
    page = str(
        template.render(
            report=report,
            totals=report.totals,
            rows=_rows(report, anchors),
            cards=cards,
            kinds=len(report.representatives()),
            others=others[:listed],
            hidden=max(0, len(others) - listed),
            outcome=outcome(report),
            headline=headline(report) if report.missing or report.timed_out else "",
            besides=besides[:MAX_BESIDES],
            besides_hidden=max(0, len(besides) - MAX_BESIDES),
            matrix=matrix(report),
            kernels=kernels,
            wrong_kernels=sum(k.verdict in WRONG for k in report.run.kernels),
            skipped=[r for r in report.run.results if r.verdict is Verdict.SKIPPED],
            levels=LEVELS,
            sandboxes=sandbox_levels(report.run),
            style=style,
            script=script,
            style_hash=_digest(style),
            script_hash=_digest(script),
            signer=signer,
        )
    )
    return inert_markup(page.rstrip()) + "\n"


@cache
def _parts() -> tuple[Any, str, str]:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    environment.filters.update(number=number, share=share, duration=duration, plural=plural)
    environment.filters["percent"] = percent
    environment.filters["inert"] = lambda data: inert_json(str(data))
    style = (FOLDER / "style.css").read_text(encoding="utf-8")
    script = (FOLDER / "script.js").read_text(encoding="utf-8")
    return environment.get_template("report.html"), style, script


def outcome(report: Report) -> str:
    """Return a sentence with the numbers of failures and regressions; empty if there are none."""
    results, kernels = report.run.results, report.run.kernels
    parts = []
    for found, word in ((results, "ops by dtype"), (kernels, "kernels")):
        wrong = sum(one.verdict in WRONG for one in found)
        if wrong:
            parts.append(f"{wrong} of {len(found)} {word}")
    sentence = f"{' and '.join(parts)} failed or broke" if parts else ""
    if report.regressions:
        worse = plural(len(report.regressions), "regression")
        sentence = f"{sentence}; {worse}" if sentence else worse
    return f"{sentence}." if sentence else ""


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _rows(report: Report, anchors: Mapping[tuple[str, str], str]) -> list[dict[str, Any]]:
    order = {Verdict.FAILED: 0, Verdict.ERROR: 1, Verdict.INCONCLUSIVE: 2, Verdict.PASSED: 3}
    rows = [
        {
            "result": r,
            "anchor": anchors.get((r.op, r.dtype), ""),
        }
        for r in report.run.results
    ]
    return sorted(rows, key=lambda row: order.get(row["result"].verdict, 4))


def matrix(report: Report) -> dict[str, Json]:
    """Return the cases by op, dtype, shape class and strategy, in a compact form.

    The result has four lists of names: ``ops``, ``dtypes``, ``classes`` and ``strategies``. Its
    list ``cells`` has one element of eight numbers per combination. The first four numbers are the
    indices of op, dtype, class and strategy in the lists of names. The last four are numbers of
    cases: passed, failed, ended in an error, with any other outcome.
    """
    names: dict[str, dict[str, int]] = {n: {} for n in ("ops", "dtypes", "classes", "strategies")}
    cells: dict[tuple[int, ...], list[int]] = {}
    order = {Verdict.PASSED: 0, Verdict.FAILED: 1, Verdict.ERROR: 2}

    def place(kind: str, word: str) -> int:
        return names[kind].setdefault(clean(word), len(names[kind]))

    for checked in report.cases:
        case = checked.case
        key = (
            place("ops", checked.op),
            place("dtypes", case.dtype),
            place("classes", case.shape_class or "-"),
            place("strategies", case.strategy),
        )
        cells.setdefault(key, [0, 0, 0, 0])[order.get(checked.result.verdict, 3)] += 1
    return {
        **{kind: list(words) for kind, words in names.items()},
        "cells": [[*key, *counts] for key, counts in cells.items()],
    }


def _kernels(report: Report) -> list[dict[str, Any]]:
    """Return a row for each entry of a kernel, or of a kernel without entries for itself."""
    against = report.baseline.kernels if report.baseline is not None else ()
    diffs = {(kernel, diff.name, diff.arch): diff for kernel, diff in against}
    shown = []
    for kernel in sorted(report.run.kernels, key=lambda k: k.verdict not in WRONG):
        for entry in kernel.entries or (None,):
            name = entry.name if entry is not None else kernel.kernel
            arch = entry.arch if entry is not None else kernel.arch
            found = diffs.get((kernel.kernel, name, arch))
            shown.append(
                {
                    "kernel": kernel,
                    "name": name,
                    "arch": arch,
                    "entry": entry,
                    "findings": [] if entry is None else _worst_first(entry.counted),
                    "deltas": [] if found is None else list(_deltas(found)),
                    "status": "" if found is None else found.status,
                }
            )
    return shown


def _worst_first(found: Iterable[Violation]) -> list[Violation]:
    order = {"error": 0, "warning": 1}
    return sorted(found, key=lambda violation: order.get(violation.severity, 2))


def _deltas(diff: KernelDiff) -> Iterator[dict[str, Any]]:
    """Yield each figure that changed; `length` is that of its bar, from -1 to 1."""
    worse = {j.metric for j in diff.judgements if j.kind == "regression"}
    for change in diff.changes:
        old, new, percent = change.old, change.new, change.percent
        part = percent if percent is not None else 100.0 if new else 0.0
        yield {
            "metric": change.metric,
            "old": "-" if old is None else f"{old:g}",
            "new": "-" if new is None else f"{new:g}",
            "percent": "new" if percent is None else f"{part:+.1f} %",
            "length": max(-1.0, min(1.0, part / 100)),
            "worse": change.metric in worse,
        }


WRONG = (Verdict.FAILED, Verdict.ERROR)
MAX_NOTE = 2000
MAX_MESSAGE = 800
MAX_MESSAGES = 3


_HEAT = (416.0, 260.0)
"""Maximum size of a heat map in pixels; tall tensors get flat cells."""
_LARGEST_CELL = 24.0


class HeatMap(Struct, frozen=True):
    """The SVG path of each level, in units of cells, and the drawing's size in pixels."""

    columns: int
    rows: int
    width: float
    height: float
    paths: tuple[tuple[str, str], ...]


def heat_map(picture: Picture) -> HeatMap:
    """Draw a heat map, one path per level; equal neighbouring cells of a row form one stroke. A
    stroke is centred on the upper edge of its cells, so the drawing must be moved down by half a
    cell."""
    columns, count = len(picture.rows[0]), len(picture.rows)
    pieces: dict[str, str] = dict.fromkeys(LEVELS, "")
    for y, row in enumerate(picture.rows):
        x = 0
        for level, same in itertools.groupby(row):
            cells = len(list(same))
            pieces[level] += f"M{x} {y}h{cells}"
            x += cells
    width = round(columns * min(_LARGEST_CELL, _HEAT[0] / columns), 1)
    height = round(count * min(_LARGEST_CELL, _HEAT[1] / count), 1)
    paths = tuple((level, path) for level, path in pieces.items() if path)
    return HeatMap(columns, count, width, height, paths)


class FailureCard(Struct, frozen=True):
    """One failure as the page shows it.

    `lead` is the line that stays visible when the card is folded. `common` is true if at least half
    of the `count` failing cases that the card stands for have the same cause.
    """

    anchor: str
    first: str
    command: str
    lead: str
    failure: CaseVerdict
    kind: str
    count: int
    common: bool
    messages: tuple[str, ...]
    cause: str
    place: str
    failure_id: str
    notes: str
    picture: Picture | None
    heat: HeatMap | None


def failure_cards(report: Report, most: int) -> tuple[list[FailureCard], list[CaseVerdict]]:
    """Return a card for each op, dtype and kind, and the failing cases without a card.

    Both lists are sorted, worst first.
    """
    counts = report_text.count_causes(report)
    chosen = report.representatives()[:most]
    found = []
    for n, failure in enumerate(chosen, 1):
        same = counts[report_text.kind_key(failure)]
        found.append(_card(report, failure, f"failure-{n}", same))
    shown = {id(failure) for failure in chosen}
    return found, [f for f in report.worst_first() if id(f) not in shown]


def _card(report: Report, failure: CaseVerdict, anchor: str, counts: Counter[str]) -> FailureCard:
    key = report.key(failure)
    known = report.run.known.get(key)
    place = report.place_of(failure)
    picture = report.pictures.get(key)
    minimal = report.run.minimal_of(failure)
    notes = "\n".join(note_lines(failure.result))
    cause = report.causes.get(key, "")
    return FailureCard(
        anchor=anchor,
        first="" if minimal is None else "\n".join(shown_lines(minimal)),
        command=failure.reproduce if minimal is None else minimal.command,
        lead=report_text.describe_failure(report, failure, counts),
        failure=failure,
        kind=kind_of(failure),
        count=counts.total(),
        common=report_text.is_common(cause, counts),
        messages=tuple(f.message[:MAX_MESSAGE] for f in failure.result.failures[:MAX_MESSAGES]),
        cause=cause,
        place=f"{place.file}:{place.line}" if place is not None else "",
        failure_id="" if known is None else known.id,
        notes=notes[:MAX_NOTE],
        picture=picture,
        heat=heat_map(picture) if picture and picture.rows and picture.elements > 1 else None,
    )


def failures_besides(report: Report) -> Iterator[dict[str, str]]:
    """Yield the reasons, other than failing cases, why a run did not pass."""

    def row(verdict: str, name: str, text: str, anchor: str) -> dict[str, str]:
        return {"verdict": verdict, "name": name, "text": text, "anchor": anchor}

    for problem in report.run.problems:
        if not problem.warning:
            text = problem.message[:MAX_MESSAGE]
            yield row("error", problem.slug, text, "problems")
    for result in report.run.results:
        if result.verdict in WRONG and not result.failures:
            name = f"{result.op} {result.dtype}"
            yield row(result.verdict.value, name, result.reason[:MAX_MESSAGE], "ops")
    for kernel in report.run.kernels:
        if kernel.verdict in WRONG:
            found = [
                f"{entry.name}: {violation.message}"
                for entry in kernel.entries
                for violation in entry.errors
            ]
            text = found[0] if found else kernel.reason
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            name = f"kernel {kernel.kernel} {kernel.arch}".rstrip()
            yield row(kernel.verdict.value, name, text[:MAX_MESSAGE] + more, "kernels")
    if report.fail_on_regression and report.regressions:
        more = f", and {len(report.regressions) - 1} more" if len(report.regressions) > 1 else ""
        text = report.regressions[0].sentence[:MAX_MESSAGE] + more
        yield row("failed", "regression", text, "baseline")


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Scores</title>
<style>{{ style | safe }}</style>
</head>
<body>
<main>
<h1>Scores</h1>
<p>{{ summary }}</p>
<table>
<caption>Problems and candidates</caption>
<thead><tr>{% for cell in head %}<th scope="col">{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table>
</main>
</body>
</html>
"""


def scores_to_html(head: Sequence[str], rows: Sequence[Sequence[str]], summary: str) -> str:
    """Return a page with a table of scores, in which all texts are escaped."""
    template, style = _score_parts()
    plain = [[clean(cell) for cell in row] for row in rows]
    page: str = template.render(head=head, rows=plain, summary=summary, style=style)
    return inert_markup(page)


@cache
def _score_parts() -> tuple[Any, str]:
    import jinja2  # noqa: PLC0415 - only for HTML

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    style = (FOLDER / "style.css").read_text(encoding="utf-8")
    return environment.from_string(_PAGE), style
