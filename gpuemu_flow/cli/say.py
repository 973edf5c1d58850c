"""Print for all commands, so that no text can act as a command to a reader of a CI log."""

from __future__ import annotations

import click

from gpuemu_flow.plain_text import inert


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text, on standard error if `err`; `nl` ends it with a newline."""
    click.echo(inert(text), err=err, nl=nl)
