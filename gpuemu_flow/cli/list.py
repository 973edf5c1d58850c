"""``gpuemu-flow list``, ``graph`` and ``explain``: show tasks, without running any."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click
from msgspec.structs import asdict

from gpuemu_flow.build import session
from gpuemu_flow.build.graph import select
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import (
    SEED,
    config_options,
    format_option,
    say,
    telling_damage,
    wants_color,
)
from gpuemu_flow.config.model import Overrides
from gpuemu_flow.report import json_writer, text, workspace_text
from gpuemu_flow.report.inspect import explain_tasks, list_workspace, summarise_tasks

# ``gpuemu-flow graph``: print the task graph as text, Mermaid or Graphviz.

_Edge = tuple[str, str]


def _text(names: Sequence[str], edges: Sequence[_Edge]) -> str:
    reads: dict[str, list[str]] = {}
    for source, target in edges:
        reads.setdefault(target, []).append(source)
    return "\n".join(
        f"{name} <- {', '.join(reads[name])}" if name in reads else name for name in names
    )


def _mermaid(names: Sequence[str], edges: Sequence[_Edge]) -> str:
    ids = {name: f"t{n}" for n, name in enumerate(names)}
    lines = ["flowchart LR"]
    lines += [f'  {ids[name]}["{name.replace(chr(34), "#quot;")}"]' for name in names]
    lines += [f"  {ids[a]} --> {ids[b]}" for a, b in edges]
    return "\n".join(lines)


def _dot(names: Sequence[str], edges: Sequence[_Edge]) -> str:
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


@click.command("list", short_help="List tasks, groups and targets.")
@click.argument("words", nargs=-1, metavar="[OP|GROUP|TARGET]...")
@click.option("--status", "with_status", is_flag=True, help="Say which are current.")
@config_options
@format_option("text", "json")
def list_tasks(
    words: tuple[str, ...],
    with_status: bool,
    profile: str,
    settings: tuple[str, ...],
    output_format: str,
) -> None:
    """List tasks, groups and targets."""
    workspace = telling_damage(Workspace(overrides=Overrides(profile=profile, settings=settings)))
    found = list_workspace(workspace, words, with_status=with_status)
    if output_format == "json":
        say(json_writer.dumps({"schema_version": 1, **asdict(found)}))
    else:
        say(workspace_text.render_list(found, text.Style(wants_color())))


# What ``run --dry-run``, ``run --explain`` and ``run --summary`` show.


def show_plan(
    workspace: Workspace,
    options: session.RunOptions,
    output_format: str,
    *,
    explain: bool,
    alone: bool,
) -> None:
    """Show which tasks would run; `alone` is true if nothing else is printed."""
    plan = session.run(workspace, options)
    for problem in plan.problems if alone else ():
        say(str(problem), err=True)
    statuses = plan.ordered_status()
    if output_format == "json" and alone:
        say(json_writer.dumps(json_writer.run_plan(statuses, plan.reasons)))
        return
    style = text.Style(wants_color())
    shown = workspace_text.render_plan(statuses, plan.reasons, style, explain=explain)
    say(shown, err=output_format == "json")


def show_summary(workspace: Workspace, options: session.RunOptions, output_format: str) -> None:
    tasks = summarise_tasks(workspace, session.selected_tasks(workspace, options))
    if output_format == "json":
        say(json_writer.dumps({"schema_version": 1, "tasks": tasks}))
    else:
        say(workspace_text.render_summary(tasks))


# ``gpuemu-flow explain``: tell why a task would run, or that it is current.


@click.command(short_help="Say why a task would run, or is current.")
@click.argument("words", nargs=-1, metavar="[TASK]...")
@click.option("--seed", type=SEED, help="Master seed in place of the configuration's.")
@format_option("text", "json")
def explain(words: tuple[str, ...], seed: int | None, output_format: str) -> None:
    """Tell for each task whether it is current, and which part of its key changed.

    Without TASK, explain all tasks that would run.
    """
    workspace = telling_damage(Workspace(overrides=Overrides(seed=seed)))
    found = explain_tasks(workspace, words)
    if output_format == "json":
        tasks = [{**asdict(t), "changes": [c.to_json() for c in t.changes]} for t in found]
        say(json_writer.dumps({"schema_version": 1, "tasks": tasks}))
    elif not (found or words):
        say(f"nothing is stale: {len(workspace.graph.tasks)} tasks are current")
    else:
        say(workspace_text.render_explanations(found, text.Style(wants_color())))
