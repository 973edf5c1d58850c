"""Write the task graph as plain text, Mermaid or Graphviz."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Edge = tuple[str, str]


def as_text(names: Sequence[str], edges: Sequence[Edge]) -> str:
    """Return the graph as text; each line names a task and the tasks whose results it uses."""
    reads: dict[str, list[str]] = {}
    for source, target in edges:
        reads.setdefault(target, []).append(source)
    return "\n".join(
        f"{name} <- {', '.join(reads[name])}" if name in reads else name for name in names
    )


def as_mermaid(names: Sequence[str], edges: Sequence[Edge]) -> str:
    """Return a Mermaid flowchart, left to right."""
    ids = {name: f"t{n}" for n, name in enumerate(names)}
    lines = ["flowchart LR"]
    lines += [f'  {ids[name]}["{name.replace(chr(34), "#quot;")}"]' for name in names]
    lines += [f"  {ids[a]} --> {ids[b]}" for a, b in edges]
    return "\n".join(lines)


def as_dot(names: Sequence[str], edges: Sequence[Edge]) -> str:
    """Return a Graphviz digraph, left to right."""

    def quoted(name: str) -> str:
        return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'

    lines = ["digraph gpuemu_flow {", "  rankdir=LR;", "  node [shape=box];"]
    lines += [f"  {quoted(name)};" for name in names]
    lines += [f"  {quoted(a)} -> {quoted(b)};" for a, b in edges]
    return "\n".join([*lines, "}"])


WRITERS: dict[str, Callable[[Sequence[str], Sequence[Edge]], str]] = {
    "text": as_text,
    "mermaid": as_mermaid,
    "dot": as_dot,
}
