"""Read commands from a terminal, with history and completion, or from a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from gpuemu_flow.build.signals import TerminatedError
from gpuemu_flow.model.errors import FlowError, Problem, UsageError
from gpuemu_flow.report.text import printable
from gpuemu_flow.services.debug.session import DebugSession, Quit

LONGEST_LINE = 64 * 1024
REMEMBERED = 1000


class CommandReader(Protocol):
    """A source of commands."""

    interactive: bool

    def read(self) -> str | None:
        """Return the next line; None at the end."""


def run_repl(
    session: DebugSession,
    reader: CommandReader,
    write: Callable[[str], None],
    complain: Callable[[str], None],
) -> int:
    """Execute commands until the input ends or a command ends the session.

    Return the exit code of the first command that failed, or 0.
    """
    code = 0
    while True:
        try:
            line = reader.read()
            if line is None:
                return code
            if len(line) > LONGEST_LINE:
                raise _too_long()
            for answer in session.execute(line):
                write(answer)
        except Quit:
            return code
        except FlowError as error:
            code = code or error.exit_code
            for problem in error.problems:
                complain(printable(str(problem)))
        except KeyboardInterrupt as stop:
            if not reader.interactive or isinstance(stop, TerminatedError):
                raise
            complain("\ninterrupted")


def _too_long() -> UsageError:
    message = f"a command of more than {LONGEST_LINE} characters"
    return UsageError(Problem("debug-bad-arguments", message))


class Pipe:
    """A source of commands: the lines of standard input, with bytes that are no UTF-8 replaced."""

    interactive = False

    def read(self) -> str | None:
        """Return the next line, cut off if it is far too long; None at the end of the input."""
        stream = sys.stdin.buffer
        line = stream.readline(4 * LONGEST_LINE + 4)
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = stream.readline(LONGEST_LINE)
        return line.decode("utf-8", "replace") if line else None


class Terminal(Struct):
    """A source of commands: lines typed on a terminal, until Ctrl-D. Use it in `line_editing`."""

    session: DebugSession
    interactive = True

    def read(self) -> str | None:
        """Show the prompt and return the next line; None after Ctrl-D."""
        try:
            return input(self.session.prompt)
        except EOFError:
            print()
            return None
        except UnicodeDecodeError:
            return "\N{REPLACEMENT CHARACTER}"


@contextlib.contextmanager
def line_editing(session: DebugSession) -> Iterator[None]:
    """Inside the context, enable completion and a history file, if Python has readline."""
    try:
        import readline  # noqa: PLC0415 - absent from some builds of Python
    except ImportError:
        yield
        return
    words: list[str] = []

    def complete(begun: str, number: int) -> str | None:
        nonlocal words
        if number == 0:
            try:
                words = session.completions(
                    begun, readline.get_line_buffer()[: readline.get_endidx()]
                )
            except FlowError:
                words = []
        return words[number] if number < len(words) else None

    path = history_path()
    readline.set_completer_delims(" \t\n")
    readline.set_completer(complete)
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    readline.set_history_length(REMEMBERED)
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        readline.set_completer(None)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            readline.write_history_file(path)


def history_path() -> Path:
    """Return the path of the command history, in the XDG state folder."""
    given = os.environ.get("XDG_STATE_HOME", "")
    # By the XDG specification, a relative path is ignored.
    state = Path(given) if given.startswith("/") else Path.home() / ".local" / "state"
    return state / "gpuemu-flow" / "debug-history"
