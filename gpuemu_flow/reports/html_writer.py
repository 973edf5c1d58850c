"""A report as one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpuemu_flow.reports import charts, graph_chart
from gpuemu_flow.reports.document import (
    LEVELS,
    CheckedCase,
    HistoryPoint,
    Picture,
    Report,
    kind_of,
)
from gpuemu_flow.reports.model import CaseFailure, OpResult
from gpuemu_flow.reports.text import duration, note_lines, number, plural, share
from gpuemu_flow.types import Json, Verdict, number_from_json

FOLDER = Path(__file__).parent / "html"
MAX_CARDS = 40
MAX_OTHERS = 200
MAX_NOTE = 2000
MAX_MESSAGE = 800
MAX_MESSAGES = 3
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class Card:
    """One failure as the page shows it."""

    anchor: str
    failure: CaseFailure
    kind: str
    name: str
    count: int
    messages: tuple[str, ...]
    cause: str
    place: str
    failure_id: str
    minimized: Mapping[str, Json] | None
    notes: str
    picture: Picture | None
    heat: charts.HeatMap | None
    scatter: charts.Scatter | None
    bars: tuple[charts.Bar, ...]


@dataclass(frozen=True)
class Row:
    """One op and dtype of the summary."""

    result: OpResult
    trend: charts.Trend | None
    anchor: str


@dataclass(frozen=True)
class Delta:
    """One figure of a kernel against the baseline; `length` is -1 to 1, worse to the right."""

    metric: str
    old: str
    new: str
    percent: str
    length: float
    worse: bool


def report_to_html(report: Report, signer: str = "") -> str:
    """The page.

    Parameters
    ----------
    signer : str
        SHA-256 of the public key that will sign it, in hex; empty when none will.
    """
    template, style, script = _parts()
    cards, others = _cards(report)
    anchors = {(c.failure.op, c.failure.case.dtype): c.anchor for c in reversed(cards)}
    # The template must not indent what is hashed: the policy lets this very text run, and no other.
    page = str(
        template.render(
            report=report,
            totals=report.totals,
            rows=_rows(report, anchors),
            cards=cards,
            others=others[:MAX_OTHERS],
            hidden=max(0, len(others) - MAX_OTHERS),
            graph=graph_chart.chart(report.tasks, report.edges),
            status_words=graph_chart.STATUS_WORDS,
            matrix=matrix(report),
            kernels=_kernels(report),
            skipped=[r for r in report.run.results if r.verdict is Verdict.SKIPPED],
            levels=LEVELS,
            style=style,
            script=script,
            style_hash=_digest(style),
            script_hash=_digest(script),
            signer=signer,
        )
    )
    return page.rstrip() + "\n"


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
    style = (FOLDER / "style.css").read_text(encoding="utf-8")
    script = (FOLDER / "script.js").read_text(encoding="utf-8")
    return environment.get_template("report.html"), style, script


def clean(text: str) -> str:
    """Text without characters that HTML cannot hold; each is shown by its number."""
    return _FORBIDDEN.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _rows(report: Report, anchors: Mapping[tuple[str, str], str]) -> list[Row]:
    history: dict[tuple[str, str], list[HistoryPoint]] = {}
    for point in report.history:
        history.setdefault((point.op, point.dtype), []).append(point)
    order = {Verdict.FAILED: 0, Verdict.ERROR: 1, Verdict.INCONCLUSIVE: 2, Verdict.PASSED: 3}
    rows = [
        Row(r, charts.trend(history.get((r.op, r.dtype), ())), anchors.get((r.op, r.dtype), ""))
        for r in report.run.results
    ]
    return sorted(rows, key=lambda row: order.get(row.result.verdict, 4))


def _cards(report: Report) -> tuple[list[Card], list[CaseFailure]]:
    """A card for each op, dtype and kind; the other failing cases as a list."""
    counts: dict[tuple[str, str, str], int] = {}
    for failure in report.run.failures:
        key = (failure.op, failure.case.dtype, kind_of(failure))
        counts[key] = counts.get(key, 0) + 1
    chosen = report.representatives()[:MAX_CARDS]
    cards = [
        _card(report, failure, f"failure-{n}", counts[failure.op, failure.case.dtype,
                                                      kind_of(failure)])
        for n, failure in enumerate(chosen, 1)
    ]  # fmt: skip
    shown = {id(failure) for failure in chosen}
    return cards, [f for f in report.worst_first() if id(f) not in shown]


def _card(report: Report, failure: CaseFailure, anchor: str, count: int) -> Card:
    key = report.key(failure)
    known = report.known.get(key)
    place = report.places.get(failure.op)
    picture = report.pictures.get(key)
    drawn = picture is not None and bool(picture.rows)
    notes = "\n".join(line for note in failure.result.notes for line in note_lines(note))
    return Card(
        anchor=anchor,
        failure=failure,
        kind=kind_of(failure),
        name=CheckedCase(failure.op, failure.case, failure.result).name,
        count=count,
        messages=tuple(f.message[:MAX_MESSAGE] for f in failure.result.failures[:MAX_MESSAGES]),
        cause=report.causes.get(key, ""),
        place=f"{place.file}:{place.line}" if place is not None else "",
        failure_id="" if known is None else known.id,
        minimized=None if known is None else known.minimized,
        notes=notes[:MAX_NOTE],
        picture=picture,
        heat=charts.heat_map(picture) if picture is not None and drawn else None,
        scatter=charts.scatter(picture) if picture is not None and drawn else None,
        bars=charts.histogram(picture) if picture is not None and drawn else (),
    )


def matrix(report: Report) -> dict[str, Json]:
    """Cases by op, dtype, shape class and strategy, short enough for thousands of them.

    ``cells``: op, dtype, class, strategy (as places in the lists of names), then how many cases
    passed, failed, ended in an error, and the rest.
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
    against = {
        (d["kernel"], d["name"], d["arch"]): d
        for d in (report.baseline["kernels"] if report.baseline is not None else ())
    }
    shown = []
    for kernel in report.run.kernels:
        entries = kernel.entries or (None,)
        for entry in entries:
            name = entry["name"] if entry is not None else kernel.kernel
            arch = entry["arch"] if entry is not None else kernel.arch
            found = against.get((kernel.kernel, name, arch))
            shown.append(
                {
                    "kernel": kernel,
                    "name": name,
                    "arch": arch,
                    "entry": entry,
                    "deltas": [] if found is None else list(_deltas(found)),
                    "status": "" if found is None else found["status"],
                }
            )
    return shown


def _deltas(diff: Mapping[str, Json]) -> Iterator[Delta]:
    worse = {j["metric"] for j in diff["judgements"] if j["kind"] == "regression"}
    for change in diff["changes"]:
        old, new = change["old"], change["new"]
        percent = change["percent"]
        part = number_from_json(percent) if percent is not None else 100.0 if new else 0.0
        yield Delta(
            metric=change["metric"],
            old="-" if old is None else f"{old:g}",
            new="-" if new is None else f"{new:g}",
            percent="new" if percent is None else f"{part:+.1f} %",
            length=max(-1.0, min(1.0, part / 100)),
            worse=change["metric"] in worse,
        )
