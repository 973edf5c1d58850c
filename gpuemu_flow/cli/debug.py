"""``gpuemu-flow debug``: examine recorded failures, interactively or all at once."""

from __future__ import annotations

import io
import sys

import click

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import say, wants_color
from gpuemu_flow.fuzz.failures import list_failures
from gpuemu_flow.report.text import Style, plural
from gpuemu_flow.services.debugger import DebugSession, run_repl


@click.command(short_help="Look into recorded failures.")
@click.option("--seed", metavar="SEED|ID", help="Begin with this failure.")
@click.option("-o", "--op", help="Only failures of this op.")
@click.option("--repl", is_flag=True, help="Read commands, with --seed too.")
def debug(seed: str | None, op: str | None, repl: bool) -> None:
    """Read commands that show, run, shrink and export recorded failures; `help` lists them.

    Commands come from the terminal or from standard input; they are never evaluated as code. With
    --seed and without --repl, one failure is shown in full, and the command ends with exit code 1
    if it still fails, 0 if it is fixed, and 4 if there is no verdict on it, for example because it
    passes although nothing has changed since it failed.
    """
    known = len(list_failures(Workspace(), op))
    session = DebugSession(op, Style(wants_color()))
    if seed is not None and not repl:
        for command in (f"show {seed}", "step all", "diff"):
            for line in session.execute(command):
                say(line)
            if command == "step all" and not session.has_outputs:
                break
        raise SystemExit(session.exit_code)
    typed = sys.stdin.isatty()
    if typed:
        of = f" of {op}" if op else ""
        say(f"{plural(known, 'failure')}{of}; `help` lists the commands")
    for line in session.execute(f"show {seed}") if seed is not None else ():
        say(line)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # what is no UTF-8 is no command
    code = run_repl(session, say, lambda text: say(text, err=True), typed=typed)
    raise SystemExit(0 if typed else code)
