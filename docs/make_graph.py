"""Draw ``docs/images/graph.svg``, the task graph of one op: ``python docs/make_graph.py``.

The graph is that of docs/architecture.md, which a test holds against the real one.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PICTURE = DOCS / "images" / "graph.svg"

SAYS = {
    "generate": ("plans the cases:", "sizes, values, layouts"),
    "op": ("runs your kernel", "on each case"),
    "reference": ("runs the reference", "in float64"),
    "compare": ("judges each element,", "gives each case a verdict"),
    "diff": ("says what got worse", "since the last results"),
}
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 216, 76, 56, 34, 14

STYLE = """
text { font-family: ui-sans-serif, system-ui, sans-serif; fill: #1f2933; }
.task { font-weight: 600; font-size: 14px; }
.says { font-size: 12px; fill: #52606d; }
.box { fill: #f5f7fa; stroke: #7b8794; stroke-width: 1.2; }
.edge { stroke: #7b8794; stroke-width: 1.4; fill: none; }
.head { fill: #7b8794; }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e7eb; } .says { fill: #9aa5b1; } .box { fill: #323f4b; stroke: #9aa5b1; }
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
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>The task graph of one op: {escape(tasks)}</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path class="head" d="M0 0 8 4 0 8z"/></marker></defs>',
    ]
    parts += [_edge(places[a], places[b]) for a, b in edges if _is_direct(a, b, edges)]
    parts += [_box(labels[node], *place) for node, place in places.items()]
    return "\n".join([*parts, "</svg>", ""])


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
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    return draw(page.split("```mermaid\n")[1].split("```")[0])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
