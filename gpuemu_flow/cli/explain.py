"""``gpuemu-flow explain``: tell why a task would run, or that it is current."""

from __future__ import annotations

import click
from msgspec.structs import asdict

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import SEED, format_option
from gpuemu_flow.cli.say import say, wants_color
from gpuemu_flow.config.model import Overrides
from gpuemu_flow.report import json_writer, text, workspace_text
from gpuemu_flow.report.inspect import explain_tasks


@click.command(short_help="Say why a task would run, or is current.")
@click.argument("words", nargs=-1, metavar="[TASK]...")
@click.option("--seed", type=SEED, help="Master seed in place of the configuration's.")
@format_option("text", "json")
def explain(words: tuple[str, ...], seed: int | None, output_format: str) -> None:
    """Tell for each task whether it is current, and which part of its key changed.

    Without TASK, explain all tasks that would run.
    """
    workspace = Workspace(overrides=Overrides(seed=seed, words=words))
    found = explain_tasks(workspace, words)
    if output_format == "json":
        tasks = [{**asdict(t), "changes": [c.to_json() for c in t.changes]} for t in found]
        say(json_writer.dumps({"schema_version": 1, "tasks": tasks}))
    elif not (found or words):
        say(f"nothing is stale: {len(workspace.graph.tasks)} tasks are current")
    else:
        say(workspace_text.render_explanations(found, text.Style(wants_color())))
