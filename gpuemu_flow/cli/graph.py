"""``gpuemu-flow graph``: print the task graph as text, Mermaid or Graphviz."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from gpuemu_flow.build.selection import select
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import format_option
from gpuemu_flow.cli.say import say

_Edge = tuple[str, str]


def _text(names: Sequence[str], edges: Sequence[_Edge]) -> str:
    """Return the graph as text; each line names a task and the tasks whose results it uses."""
    reads: dict[str, list[str]] = {}
    for source, target in edges:
        reads.setdefault(target, []).append(source)
    return "\n".join(
        f"{name} <- {', '.join(reads[name])}" if name in reads else name for name in names
    )


def _mermaid(names: Sequence[str], edges: Sequence[_Edge]) -> str:
    """Return a Mermaid flowchart, left to right."""
    ids = {name: f"t{n}" for n, name in enumerate(names)}
    lines = ["flowchart LR"]
    lines += [f'  {ids[name]}["{name.replace(chr(34), "#quot;")}"]' for name in names]
    lines += [f"  {ids[a]} --> {ids[b]}" for a, b in edges]
    return "\n".join(lines)


def _dot(names: Sequence[str], edges: Sequence[_Edge]) -> str:
    """Return a Graphviz digraph, left to right."""

    def quoted(name: str) -> str:
        return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'

    lines = ["digraph gpuemu_flow {", "  rankdir=LR;", "  node [shape=box];"]
    lines += [f"  {quoted(name)};" for name in names]
    lines += [f"  {quoted(a)} -> {quoted(b)};" for a, b in edges]
    return "\n".join([*lines, "}"])


_WRITERS: dict[str, Callable[[Sequence[str], Sequence[_Edge]], str]] = {
    "text": _text,
    "mermaid": _mermaid,
    "dot": _dot,
}


@click.command(short_help="Draw the task graph.")
@click.argument("words", nargs=-1, metavar="[OP|TASK|GROUP|TARGET]...")
@format_option("text", "mermaid", "dot")
def graph(words: tuple[str, ...], output_format: str) -> None:
    """Draw the graph of tasks: each task with the tasks whose results it reads."""
    workspace = Workspace()
    tasks = workspace.graph
    chosen = tasks.upstream(select(workspace, words))
    edges = [
        (source.task, name) for name in tasks.tasks if name in chosen
        for source in tasks.tasks[name].inputs
    ]  # fmt: skip
    say(_WRITERS[output_format]([n for n in tasks.tasks if n in chosen], edges))
