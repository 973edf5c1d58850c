"""``gpuemu-flow daemon``: start, stop, restart, status and logs of a workspace's daemon."""

from __future__ import annotations

import os
from pathlib import Path

import click

from gpuemu_flow.cli.options import format_option, say
from gpuemu_flow.config.load import find_config
from gpuemu_flow.report import json_writer
from gpuemu_flow.services.daemon.control import describe, log_tail, running, stop_daemon
from gpuemu_flow.services.daemon.lifecycle import AlreadyRunningError, serve
from gpuemu_flow.wire import start_daemon


@click.group()
def daemon() -> None:
    """Manage the daemon that interactive clients talk to, one per workspace and user."""


def _root() -> Path:
    return find_config(Path.cwd(), os.environ).parent.resolve()


@daemon.command()
@click.option("--background", "-b", is_flag=True, help="Return when clients can connect.")
@click.option("--foreground", is_flag=True, help="Stay until interrupted; the default.")
def start(background: bool, foreground: bool) -> None:
    """Start the workspace's daemon, unless it already runs."""
    if background and foreground:
        raise click.UsageError("give --background or --foreground, not both")
    if background:
        _start_in_background()
        return
    try:
        serve(_root(), on_ready=lambda info: say(f"listening at {info['socket']}"))
    except AlreadyRunningError as running:
        say(running.problems[0].message)


def _start_in_background() -> None:
    root = _root()
    info = start_daemon(root, os.environ)
    if info:
        say(f"daemon started (process {info['pid']}), listening at {info['socket']}")
    else:
        found = running(root, os.environ)
        say(f"a daemon serves {root} already (process {found.pid if found else '?'})")


@daemon.command()
def stop() -> None:
    """Stop the workspace's daemon cleanly; its results are kept."""
    pid = stop_daemon(_root(), os.environ)
    say("no daemon to stop" if pid is None else f"daemon stopped (process {pid})")


@daemon.command()
def restart() -> None:
    """Stop the daemon if it runs, and start it in the background."""
    stop_daemon(_root(), os.environ)
    _start_in_background()


@daemon.command()
@format_option("text", "json")
def status(output_format: str) -> None:
    """Tell whether the daemon runs and answers; exit code 3 if not."""
    root = _root()
    found = describe(root, os.environ)
    if output_format == "json":
        say(json_writer.dumps({"schema_version": 1, "root": str(root), **found.to_json()}))
    else:
        say(found.line(""))
        if found.answers:
            say(f"socket {found.socket}\nlog {found.log}")
        if found.config_error:
            say(f"its configuration is out of date: {found.config_error}")
    if not found.answers:
        raise SystemExit(3)


@daemon.command()
@click.option(
    "-l",
    "-n",
    "--lines",
    type=click.IntRange(0),
    default=50,
    show_default=True,
    help="Print the last N lines.",
)
def logs(lines: int) -> None:
    """Print the end of the daemon's log."""
    root = _root()
    for line in log_tail(root, os.environ, lines):
        say(line)
