"""``gpuemu-flow graph``: print the task graph as text, Mermaid or Graphviz."""

from __future__ import annotations

import click

from gpuemu_flow.cli.options import format_option
from gpuemu_flow.cli.say import say


@click.command(short_help="Draw the task graph.")
@click.argument("words", nargs=-1, metavar="[OP|TASK|GROUP|TARGET]...")
@format_option("text", "mermaid", "dot")
def graph(words: tuple[str, ...], output_format: str) -> None:
    """Draw the graph of tasks: each task with the tasks whose results it reads."""
    from gpuemu_flow.engine.workspace import Workspace  # noqa: PLC0415
    from gpuemu_flow.reports.graph_writer import WRITERS  # noqa: PLC0415
    from gpuemu_flow.selection.words import select  # noqa: PLC0415

    workspace = Workspace()
    tasks = workspace.graph
    chosen = tasks.upstream(select(workspace, words))
    edges = [
        (source.task, name) for name in tasks.tasks if name in chosen
        for source in tasks.tasks[name].inputs
    ]  # fmt: skip
    say(WRITERS[output_format]([n for n in tasks.tasks if n in chosen], edges))
