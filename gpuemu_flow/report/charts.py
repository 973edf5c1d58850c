"""Compute the drawings of an HTML report: numbers and paths, but no text from a user."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gpuemu_flow.report.document import LEVELS, SHARES, HistoryPoint, Picture, TaskState

Point = tuple[float, float]


class HeatMap(Struct, frozen=True):
    """Heat map: the SVG path of each level, in units of cells, and the drawing's size in pixels."""

    columns: int
    rows: int
    width: float
    height: float
    paths: tuple[tuple[str, str], ...]


class Scatter(Struct, frozen=True):
    """Scatter chart of error over magnitude."""

    width: float
    height: float
    paths: tuple[tuple[int, bool, str], ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


class Bar(Struct, frozen=True):
    """One bar: its label, count, length from 0 to 1, and whether it is beyond the tolerance."""

    label: str
    count: int
    length: float
    failing: bool


class Trend(Struct, frozen=True):
    """Chart of the worst error of each run: a line, with marks at the runs that did not pass."""

    width: float
    height: float
    line: str
    failing: str
    last: Point
    label: str


def heat_map(picture: Picture) -> HeatMap:
    """Draw a heat map, one path per level; equal neighbouring cells of a row form one stroke. A
    stroke is centred on the upper edge of its cells, so the drawing must be moved down by half a
    cell."""
    columns = max((len(row) for row in picture.rows), default=0)
    pieces: dict[str, list[str]] = {level: [] for level in LEVELS}
    for y, row in enumerate(picture.rows):
        x = 0
        while x < len(row):
            end = x
            while end < len(row) and row[end] == row[x]:
                end += 1
            pieces[row[x]].append(f"M{x} {y}h{end - x}")
            x = end
    paths = tuple((level, "".join(found)) for level, found in pieces.items() if found)
    count = len(picture.rows)
    width = columns * min(_LARGEST_CELL, _HEAT[0] / max(1, columns))
    height = count * min(_LARGEST_CELL, _HEAT[1] / max(1, count))
    return HeatMap(columns, count, round(width, 1), round(height, 1), paths)


_HEAT = (416.0, 260.0)
"""Maximum size of a heat map in pixels; tall tensors get flat cells."""
_LARGEST_CELL = 24.0
_GUTTER = 6.0
_PLOT = (240.0, 170.0)
"""Approximate width and height of the plot in pixels."""
_MOST = (28, 22)
"""Maximum numbers of cells along x and y; if there are more half decades, a cell covers several."""
_LARGEST_STEP = 26.0
_GAPS = (36.0, 18.0)
"""Minimum distances between labels in pixels: horizontal, vertical."""


class _Axis(Struct, frozen=True):
    """The layout of one axis, divided into cells. The half decade of a value v is the number
    ``floor(2 * log10(v))``."""

    step: float
    width: int
    places: Mapping[int, float]

    def cell(self, value: int) -> int:
        """Return the key in `places` of the cell that contains the half decade `value`. The key is
        the first half decade in the cell. `_ZERO` and `_SPECIAL` are their own keys."""
        return value if value in (_ZERO, _SPECIAL) else value // self.width * self.width


def scatter(picture: Picture) -> Scatter:
    """Draw a scatter chart in cells of whole half decades. On each axis, the cell for zeros comes
    first, and the one for NaN and Inf last."""
    x_axis = _axis([point[0] for point in picture.scatter], _PLOT[0], _MOST[0])
    y_axis = _axis([point[1] for point in picture.scatter], _PLOT[1], _MOST[1])
    cells: dict[tuple[int, int], list[int]] = {}
    for x, y, count, bad in picture.scatter:
        cell = cells.setdefault((x_axis.cell(x), y_axis.cell(y)), [0, 0])
        cell[0] += count
        cell[1] += bad
    most = max((count for count, _ in cells.values()), default=1)
    width = max(x_axis.places.values(), default=0.0) + x_axis.step
    height = max(y_axis.places.values(), default=0.0) + y_axis.step
    paths: dict[tuple[int, bool], list[str]] = {}
    for (x, y), (count, bad) in sorted(cells.items()):
        shade = 1 + math.floor(3 * math.log(count) / math.log(most)) if most > 1 else 4
        left, top = x_axis.places[x], height - y_axis.step - y_axis.places[y]
        piece = f"M{left:g} {top:g}h{x_axis.step:g}v{y_axis.step:g}h-{x_axis.step:g}z"
        paths.setdefault((shade, bad > 0), []).append(piece)
    return Scatter(
        width,
        height,
        tuple((shade, bad, "".join(pieces)) for (shade, bad), pieces in sorted(paths.items())),
        _ticks(x_axis, _GAPS[0]),
        tuple((height - at, text) for at, text in _ticks(y_axis, _GAPS[1])),
    )


_ZERO, _SPECIAL = -80, 80


def _axis(values: Sequence[int], length: float, most: int) -> _Axis:
    """Make an axis that has cells for the given half decades and for all between them."""
    found = set(values)
    finite = sorted(v for v in found if _ZERO < v < _SPECIAL)
    width = 1
    between = range(0)
    if finite:
        width = max(1, math.ceil((finite[-1] - finite[0] + 1) / most))
        between = range(finite[0] // width * width, finite[-1] + 1, width)
    count = len(between) + len(found & {_ZERO, _SPECIAL})
    step = round(min(_LARGEST_STEP, length / max(1, count)), 1)
    places, at = {}, 0.0
    if _ZERO in found:
        places[_ZERO] = at
        at += step + _GUTTER
    for value in between:
        places[value] = round(at, 1)
        at += step
    if _SPECIAL in found:
        places[_SPECIAL] = round(at + (_GUTTER if places else 0.0), 1)
    return _Axis(step, width, places)


def _ticks(axis: _Axis, gap: float) -> tuple[tuple[float, str], ...]:
    shown: list[tuple[float, str]] = []
    for value, at in axis.places.items():
        special = value in (_ZERO, _SPECIAL)
        middle = round(at + axis.step / 2 if special else at, 1)
        far = not shown or middle - shown[-1][0] >= gap
        if special or (value % 2 == 0 and far):
            shown.append((middle, _tick(value)))
    return tuple(shown)


def _tick(value: int) -> str:
    if value == _ZERO:
        return "0"
    return "NaN/Inf" if value == _SPECIAL else f"1e{value // 2}"


def histogram(picture: Picture) -> tuple[Bar, ...]:
    """Draw a histogram of the elements, by the share of the tolerance that their errors use. Empty
    bars at the upper end are left out, but only those above the tolerance."""
    labels = [_share(share) for share in SHARES] + ["more"]
    most = max(picture.histogram, default=0) or 1
    bars = [
        Bar(label, count, math.sqrt(count / most), number > SHARES.index(1.0))
        for number, (label, count) in enumerate(zip(labels, picture.histogram, strict=True))
    ]
    last = max((n for n, bar in enumerate(bars) if bar.count), default=0)
    return tuple(bars[: max(last, SHARES.index(1.0)) + 1])


def _share(value: float) -> str:
    if value == 0:
        return "exact"
    return f"≤ {value * 100:g} %" if value <= 1 else f"≤ {value:g} ×"


TREND_WIDTH, TREND_HEIGHT = 120.0, 26.0
TREND_POINTS = 30


def trend(points: Sequence[HistoryPoint]) -> Trend | None:
    """Draw the worst error of the last runs on a logarithmic scale; None for too few runs."""
    shown = list(points)[-TREND_POINTS:]
    if len(shown) < 2:
        return None
    logs = [math.log10(p.max_abs) if 0 < p.max_abs < math.inf else None for p in shown]
    known = [v for v in logs if v is not None] or [0.0]
    low, high = min(known), max(known)
    span = (high - low) or 1.0

    def place(number: int) -> Point:
        value, error = logs[number], shown[number].max_abs
        share = (value - low) / span if value is not None else 0.0 if error == 0 else 1.0
        if high == low and value is not None:
            share = 0.5
        x = 4 + (TREND_WIDTH - 8) * number / (len(shown) - 1)
        return round(x, 1), round(TREND_HEIGHT - 4 - (TREND_HEIGHT - 8) * share, 1)

    places = [place(number) for number in range(len(shown))]
    line = "M" + "L".join(f"{x:g} {y:g}" for x, y in places)
    wrong = [p for p, s in zip(places, shown, strict=True) if s.verdict != "passed"]
    marks = "".join(f"M{x:g} {y:g}h0" for x, y in wrong)
    first, last = shown[0], shown[-1]
    label = (
        f"worst error over {len(shown)} runs, from {first.max_abs:.2e} to {last.max_abs:.2e}; "
        f"{len(wrong)} did not pass"
    )
    return Trend(TREND_WIDTH, TREND_HEIGHT, line, marks, places[-1], label)


# Draw the task graph: one row per op and dtype or per kernel, and one column per stage.

MAX_ROWS = 120
_COLUMNS = {
    "generate": 0, "build": 0, "op": 1, "reference": 1, "compare": 2, "lint": 2, "diff": 3,
    "kernel-diff": 3,
}  # fmt: skip
_JUDGES = ("compare", "lint")
_WHOLE = ("diff", "kernel-diff")
"""Stages of a whole op or kernel, which are drawn next to all its rows."""
_LIFT = {"op": -8.0, "reference": 8.0}
LEFT, STEP, ROW, TOP = 210.0, 130.0, 36.0, 34.0
HEADINGS = (("generate or build", 0), ("op over reference", 1), ("compare or lint", 2), ("diff", 3))


class Node(Struct, frozen=True):
    """A task: its position, status and name, and the verdict on its subject."""

    x: float
    y: float
    status: str
    name: str
    found: str = ""


class GraphChart(Struct, frozen=True):
    """Nodes, all edges as one SVG path, and the position, label and verdict of each row."""

    width: float
    height: float
    nodes: tuple[Node, ...]
    edges: str
    labels: tuple[tuple[float, str, str], ...]
    headings: tuple[tuple[float, str], ...]
    hidden: int


def chart(
    tasks: Sequence[TaskState],
    edges: Sequence[tuple[str, str]],
    found: Mapping[tuple[str, str], str] | None = None,
) -> GraphChart:
    """Assign positions to the tasks; rows beyond `MAX_ROWS` are only counted."""
    found = found or {}
    wrong = {subject for subject, _ in found}
    rows: dict[tuple[str, str], int] = {}
    for task in sorted(tasks, key=lambda task: task.subject not in wrong):
        if task.stage not in _WHOLE:
            rows.setdefault((task.subject, task.part), len(rows))
    of_subject: dict[str, list[int]] = {}
    for (subject, _), row in rows.items():
        of_subject.setdefault(subject, []).append(row)
    places: dict[str, tuple[float, float]] = {}
    nodes = []
    for task in tasks:
        at = of_subject.get(task.subject, [0])
        if task.stage not in _WHOLE:
            at = [rows[task.subject, task.part]]
        if max(at) >= MAX_ROWS:
            continue
        x = LEFT + STEP * _COLUMNS.get(task.stage, 0)
        y = TOP + ROW * (sum(at) / len(at) + 0.5) + _LIFT.get(task.stage, 0.0)
        places[task.name] = (x, y)
        verdict = found.get((task.subject, task.part), "") if task.stage in _JUDGES else ""
        nodes.append(Node(x, y, task.status or "unknown", task.name, verdict))
    path = "".join(_edge(places[a], places[b]) for a, b in edges if a in places and b in places)
    labels = tuple(
        (TOP + ROW * (row + 0.5), f"{subject} {rest}".rstrip(), found.get((subject, rest), ""))
        for (subject, rest), row in rows.items()
        if row < MAX_ROWS
    )
    return GraphChart(
        width=LEFT + STEP * 3 + 40,
        height=TOP + ROW * min(len(rows), MAX_ROWS) + 8,
        nodes=tuple(nodes),
        edges=path,
        labels=labels,
        headings=tuple((LEFT + STEP * column, text) for text, column in HEADINGS),
        hidden=len(tasks) - len(nodes),
    )


def counted(tasks: Sequence[TaskState]) -> list[tuple[str, str, int]]:
    """Return (status, meaning, number of tasks) for each status that tasks have."""
    counts: dict[str, int] = {}
    for task in tasks:
        status = task.status or "unknown"
        counts[status] = counts.get(status, 0) + 1
    return [(s, STATUS_WORDS[s], counts[s]) for s in STATUS_WORDS if s in counts]


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = start, end
    middle = (x1 + x2) / 2
    return f"M{x1:g} {y1:g}C{middle:g} {y1:g} {middle:g} {y2:g} {x2:g} {y2:g}"


STATUS_WORDS: Mapping[str, str] = {
    "ran": "ran",
    "restored": "restored from the action cache",
    "current": "current, nothing to do",
    "failed": "could not do its work",
    "pending": "yet to run",
    "unknown": "not run by this report",
}
