"""Print the output of all commands in a form in which CI services execute none of it."""

from __future__ import annotations

import os
import sys

import click

from gpuemu_flow.model.plain_text import inert

VARIABLE = "_GPUEMU_FLOW_COMPLETE"
"""Set by a shell that completes a command line; click derives it from the program's name."""
_ESCAPE = "\x1b"


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text, on standard error if `err`; with `nl`, add a newline."""
    shown = inert(text)
    line = f"{shown}\n" if nl else shown
    stream = sys.stderr if err else sys.stdout
    if str(stream.encoding).lower() == "utf-8" and _ESCAPE not in shown:
        stream.write(line)
        stream.flush()
        return
    # click knows which streams support colours, and repairs those without an encoding.
    click.echo(shown, err=err, nl=nl)


def wants_color() -> bool:
    """Tell whether to print colours: on a terminal, unless plain text was requested."""
    refused = os.environ.get("NO_COLOR") or os.environ.get("GPUEMU_NO_COLOR")
    return sys.stdout.isatty() and not refused and os.environ.get("TERM") != "dumb"
