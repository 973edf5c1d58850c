"""``gpuemu-flow list``: list the tasks of the workspace, with their state on request."""

from __future__ import annotations

import click
from msgspec.structs import asdict

from gpuemu_flow.build.selection import durations_text
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import config_options, format_option
from gpuemu_flow.cli.say import say, wants_color
from gpuemu_flow.config.model import Overrides
from gpuemu_flow.report import json_writer, text, workspace_text
from gpuemu_flow.report.inspect import list_workspace, op_durations


@click.command("list", short_help="List tasks, groups and targets.")
@click.argument("words", nargs=-1, metavar="[OP|GROUP|TARGET]...")
@click.option("--status", "with_status", is_flag=True, help="Say which are current.")
@click.option(
    "--durations", is_flag=True, help="Print the seconds of each op as JSON, for --shard."
)
@config_options
@format_option("text", "json")
def list_tasks(
    words: tuple[str, ...],
    with_status: bool,
    durations: bool,
    profile: str,
    settings: tuple[str, ...],
    output_format: str,
) -> None:
    """List tasks, groups and targets."""
    workspace = Workspace(overrides=Overrides(profile=profile, settings=settings, words=words))
    if durations:
        say(durations_text(op_durations(workspace, words)))
        return
    found = list_workspace(workspace, words, with_status=with_status)
    if output_format == "json":
        say(json_writer.dumps({"schema_version": 1, **asdict(found)}))
    else:
        say(workspace_text.render_list(found, text.Style(wants_color())))
