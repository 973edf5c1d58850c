"""``gpuemu-flow version``: show the versions that results depend on."""

from __future__ import annotations

import click

from gpuemu_flow import __version__
from gpuemu_flow.build.files import fingerprint
from gpuemu_flow.cli.say import say


@click.command(short_help="Show versions.")
def version() -> None:
    """Show the tool's version, and the interpreter, packages and CPU that results depend on."""
    say(f"gpuemu-flow {__version__}")
    for name, value in fingerprint().items():
        say(f"  {name:10} {value}")
