"""Print for all commands, so that no text can act as a command to a reader of a CI log."""

from __future__ import annotations

import click

from gpuemu_flow.inputs import answers
from gpuemu_flow.plain_text import inert


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text, on standard error if `err`; `nl` ends it with a newline."""
    shown = inert(text)
    if answers.recording is not None:
        answers.recording.record(f"{shown}\n" if nl else shown, err=err)
    click.echo(shown, err=err, nl=nl)
