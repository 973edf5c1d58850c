"""Draw the pictures of docs/architecture.md for readers whose browser has no Mermaid.

``python docs/generate.py`` writes ``docs/images/graph.svg``, the task graph of one op, and
``docs/images/house.svg``, the packages by floor. Tests hold both texts against the real things.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parent
SAYS = {
    "generate": ("plans the cases:", "sizes, values, layouts"),
    "op": ("runs your kernel", "on each case"),
    "reference": ("runs the reference", "in float64"),
    "compare": ("judges each element,", "gives each case a verdict"),
    "diff": ("says what got worse", "since the last results"),
}
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 216, 76, 56, 34, 14
ROOM, STOREY, BETWEEN, TITLE, SPACE = 196, 46, 14, 18, 10

STYLE = """
text { font-family: ui-sans-serif, system-ui, sans-serif; fill: #1f2933; }
.task { font-weight: 600; font-size: 14px; }
.says { font-size: 12px; fill: #52606d; }
.room { font-weight: 600; font-size: 12px; }
.small { font-size: 11px; fill: #52606d; }
.frame { fill: none; stroke: #9aa5b1; stroke-dasharray: 4 3; }
.box { fill: #f5f7fa; stroke: #7b8794; stroke-width: 1.2; }
.edge { stroke: #7b8794; stroke-width: 1.4; fill: none; }
.head { fill: #7b8794; }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e7eb; } .says, .small { fill: #9aa5b1; } .box { fill: #323f4b; stroke: #9aa5b1; }
  .edge { stroke: #9aa5b1; } .head { fill: #9aa5b1; }
}
"""


def read_graph(mermaid: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Labels by node, and edges, of what ``gpuemu-flow graph --format mermaid`` prints."""
    labels = dict(re.findall(r'^  (\w+)\["([^"]+)"\]$', mermaid, re.MULTILINE))
    return labels, re.findall(r"^  (\w+) --> (\w+)$", mermaid, re.MULTILINE)


def columns(labels: dict[str, str], edges: list[tuple[str, str]]) -> list[list[str]]:
    """Nodes by the length of the longest way to them."""
    depth = dict.fromkeys(labels, 0)
    for _ in labels:
        for before, after in edges:
            depth[after] = max(depth[after], depth[before] + 1)
    found: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for node in labels:
        found[depth[node]].append(node)
    return found


def draw(mermaid: str) -> str:
    """The picture as SVG."""
    labels, edges = read_graph(mermaid)
    layers = columns(labels, edges)
    tallest = max(len(layer) for layer in layers)
    height = 2 * MARGIN + tallest * HEIGHT + (tallest - 1) * GAP_Y
    width = 2 * MARGIN + len(layers) * WIDTH + (len(layers) - 1) * GAP_X
    places: dict[str, tuple[float, float]] = {}
    for x, layer in enumerate(layers):
        own = len(layer) * HEIGHT + (len(layer) - 1) * GAP_Y
        for y, node in enumerate(layer):
            top = (height - own) / 2 + y * (HEIGHT + GAP_Y)
            places[node] = (MARGIN + x * (WIDTH + GAP_X), top)
    tasks = ", ".join(labels.values())
    parts = [_edge(places[a], places[b]) for a, b in edges if _is_direct(a, b, edges)]
    parts += [_box(labels[node], *place) for node, place in places.items()]
    return _svg(width, height, f"The task graph of one op: {tasks}", parts)


def _is_direct(before: str, after: str, edges: list[tuple[str, str]]) -> bool:
    """Whether no other way leads from one node to the other: such an edge would only clutter."""
    return not any(a == before and (b, after) in edges for a, b in edges)


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    x1, y1 = start[0] + WIDTH, start[1] + HEIGHT / 2
    x2, y2 = end[0] - 2, end[1] + HEIGHT / 2
    middle = (x1 + x2) / 2
    path = f"M{x1:g} {y1:g}C{middle:g} {y1:g} {middle:g} {y2:g} {x2:g} {y2:g}"
    return f'<path class="edge" d="{path}" marker-end="url(#head)"/>'


def _box(label: str, x: float, y: float) -> str:
    lines = SAYS[label.partition(":")[0]]
    center = x + WIDTH / 2
    texts = [f'<text class="task" x="{center:g}" y="{y + 25:g}" text-anchor="middle">'
             f"{escape(label)}</text>"]  # fmt: skip
    texts += [
        f'<text class="says" x="{center:g}" y="{y + 45 + 16 * n:g}" text-anchor="middle">'
        f"{escape(line)}</text>"
        for n, line in enumerate(lines)
    ]
    box = f'<rect class="box" x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="8"/>'
    return "\n".join([box, *texts])


def picture() -> str:
    """The picture of the graph in docs/architecture.md."""
    return draw(_block("graph"))


def _block(name: str) -> str:
    """The text of a Mermaid block of the page, by its mark."""
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    return page.split(f"<!-- {name} -->\n```mermaid\n")[1].split("```")[0]


class Floor(NamedTuple):
    """A floor of the house: its title, empty for a floor of one box, and boxes with two lines."""

    title: str
    boxes: list[tuple[str, str]]


def read_house(mermaid: str) -> list[Floor]:
    """Read the floors from the top, and last what stands beside the house."""
    floors: dict[str, Floor] = {}
    frame = Floor("", [])
    order: list[str] = []
    for line in mermaid.splitlines():
        if opened := re.fullmatch(r'  subgraph (\w+)\["([^"]+)"\]', line):
            frame = floors[opened[1]] = Floor(opened[2], [])
        elif box := re.fullmatch(r'( +)(\w+)\["([^"]+)<br/>([^"]+)"\]', line):
            floor = frame if len(box[1]) > 2 else floors.setdefault(box[2], Floor("", []))
            floor.boxes.append((box[3], box[4]))
        elif " --> " in line:
            names = line.split()[::2]
            order += names if not order else names[1:] if names[0] == order[-1] else []
    return [*(floors[name] for name in order), *(f for n, f in floors.items() if n not in order)]


def house() -> str:
    """The picture of the house in docs/architecture.md."""
    floors = read_house(_block("house"))
    widest = max(len(floor.boxes) for floor in floors)
    width = 2 * MARGIN + widest * (ROOM + SPACE) + SPACE
    parts: list[str] = []
    top = float(MARGIN)
    for n, floor in enumerate(floors):
        own = len(floor.boxes) * (ROOM + SPACE) + SPACE
        left = (width - own) / 2
        above = TITLE if floor.title else 0
        high = above + STOREY + (SPACE if floor.title else 0)
        if 0 < n < len(floors) - 1:
            arrow = f"M{width / 2:g} {top - BETWEEN:g}V{top - 2:g}"
            parts.append(f'<path class="edge" d="{arrow}" marker-end="url(#head)"/>')
        if floor.title:
            parts.append(
                f'<rect class="frame" x="{left:g}" y="{top:g}" width="{own}" height="{high}" '
                f'rx="8"/>\n<text class="says" x="{left + SPACE:g}" y="{top + 13:g}">'
                f"{escape(floor.title)}</text>"
            )
        for column, lines in enumerate(floor.boxes):
            parts.append(_room(lines, left + SPACE + column * (ROOM + SPACE), top + above))
        top += high + BETWEEN + (BETWEEN if n == len(floors) - 2 else 0)
    return _svg(width, top - BETWEEN + MARGIN, "The packages of gpuemu_flow by floor", parts)


def _room(lines: tuple[str, str], x: float, y: float) -> str:
    center = x + ROOM / 2
    name, says = map(escape, lines)
    return (
        f'<rect class="box" x="{x:g}" y="{y:g}" width="{ROOM}" height="{STOREY}" rx="6"/>\n'
        f'<text class="room" x="{center:g}" y="{y + 19:g}" text-anchor="middle">{name}</text>\n'
        f'<text class="small" x="{center:g}" y="{y + 36:g}" text-anchor="middle">{says}</text>'
    )


def _svg(width: float, height: float, title: str, parts: list[str]) -> str:
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path class="head" d="M0 0 8 4 0 8z"/></marker></defs>',
    ]
    return "\n".join([*head, *parts, "</svg>", ""])
