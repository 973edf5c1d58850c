"""``gpuemu-flow status``: what the workspace's cache holds and how the last run stood."""

from __future__ import annotations

import click

from gpuemu_flow.cli.options import format_option, wants_color


@click.command(short_help="Show the workspace, its results and cache.")
@format_option("text", "json")
def status(output_format: str) -> None:
    """Show the workspace, its tasks by state, its last verdicts and its cache."""
    from gpuemu_flow import __version__  # noqa: PLC0415
    from gpuemu_flow.engine.inspect import workspace_status  # noqa: PLC0415
    from gpuemu_flow.engine.workspace import Workspace  # noqa: PLC0415
    from gpuemu_flow.reports import json_writer, text  # noqa: PLC0415

    found = workspace_status(Workspace())
    if output_format == "json":
        click.echo(json_writer.dumps({"version": __version__, **found}))
    else:
        click.echo(text.render_status(found, text.Style(wants_color())))
