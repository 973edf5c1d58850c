"""Draw the task graph: one row per op and dtype or per kernel, and one column per stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from gpuemu_flow.results.document import TaskState

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
