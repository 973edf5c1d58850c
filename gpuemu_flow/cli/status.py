"""``gpuemu-flow status``: show the workspace, its verdicts, its cache and its daemon."""

from __future__ import annotations

import os
from pathlib import Path

import click
from msgspec.structs import asdict

from gpuemu_flow import __version__
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import config_options, format_option
from gpuemu_flow.cli.say import say, wants_color
from gpuemu_flow.config.model import Overrides
from gpuemu_flow.report import json_writer, text, workspace_text
from gpuemu_flow.report.inspect import workspace_status
from gpuemu_flow.services.daemon.files import DaemonState, find_place, holder


@click.command(short_help="Show the workspace, its results, cache and daemon.")
@config_options
@format_option("text", "json")
def status(profile: str, settings: tuple[str, ...], output_format: str) -> None:
    """Show the workspace, its tasks by state, its last verdicts, its cache and its daemon."""
    workspace = Workspace(overrides=Overrides(profile=profile, settings=settings))
    found = workspace_status(workspace)
    daemon = _daemon(workspace.root)
    if output_format == "json":
        shown = {"version": __version__, "schema_version": 1, **asdict(found)}
        say(json_writer.dumps({**shown, "daemon": daemon.to_json()}))
    else:
        say(daemon.line(__version__))
        say(workspace_text.render_status(found, text.Style(wants_color())))


def _daemon(root: Path) -> DaemonState:
    """Return the state of the daemon; if none runs, import no code to communicate with it."""
    place = find_place(root, os.environ)
    if place is None or holder(place.lock) is None:
        return DaemonState()
    from gpuemu_flow.services.daemon.control import describe  # noqa: PLC0415 - brings pynng

    return describe(root, os.environ)
