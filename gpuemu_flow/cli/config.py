"""``gpuemu-flow config`` and ``version``: check the configuration, show versions."""

from __future__ import annotations

import os
from pathlib import Path

import click

from gpuemu_flow import __version__
from gpuemu_flow.build.files import fingerprint
from gpuemu_flow.cli.options import say


@click.group()
def config() -> None:
    """Check the configuration."""


@config.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Warnings, such as unknown keys, are errors.")
def check(file: Path | None, strict: bool) -> None:
    """Check gpuemu.toml (or FILE) and name every problem with its line."""
    from gpuemu_flow.config.load import check_config, find_config  # noqa: PLC0415

    path = file or find_config(Path.cwd(), os.environ)
    problems = check_config(path, strict=strict)
    for problem in problems:
        say(str(problem), err=not problem.warning)
    errors = sum(not problem.warning for problem in problems)
    if errors:
        say(f"{path.name}: {errors} error{'s' if errors != 1 else ''}", err=True)
        raise SystemExit(2)
    say(f"{path.name}: ok")


# ``gpuemu-flow version``: show the versions that results depend on.


@click.command(short_help="Show versions.")
def version() -> None:
    """Show the tool's version, and the interpreter, packages and CPU that results depend on."""
    say(f"gpuemu-flow {__version__}")
    for name, value in fingerprint().items():
        say(f"  {name:10} {value}")
