"""End a command: show its errors, and turn its outcome into an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

from gpuemu_flow.cli.say import say
from gpuemu_flow.engine.signals import (
    repeating_interrupts,
    terminating_as_interrupting,
    unwrapped_interrupts,
)
from gpuemu_flow.errors import CancelledRunError, FlowError, Problem
from gpuemu_flow.plain_text import printable

INTERRUPTED = 130

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def print_problems(problems: tuple[Problem, ...] | list[Problem]) -> None:
    """Print problems on standard error, one per line."""
    for problem in problems:
        say(printable(str(problem)), err=True)


def exit_code_of(command: Callable[[], object]) -> int:
    """Run a command and return the documented exit code."""
    code: object
    try:
        try:
            with unwrapped_interrupts(), terminating_as_interrupting(), repeating_interrupts():
                code = command()
        except SystemExit as end:  # how commands report their exit code
            code = end.code
        sys.stdout.flush()
    except FlowError as error:
        print_problems(error.problems)
        code = error.exit_code
    except (KeyboardInterrupt, CancelledRunError):
        code = INTERRUPTED
        _say_last("interrupted")
    except BrokenPipeError:
        # The reader has ended (`| head`); later writes must not report that again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        if error.filename is not None:
            from gpuemu_flow.store.atomic import disk_problem  # noqa: PLC0415 - seldom needed

            print_problems([disk_problem(error, error.filename)])
            return 3
        _say_last(f"error: cannot write the output: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 3
    return code if isinstance(code, int) else 0


def _say_last(text: str) -> None:
    """Print a line on standard error; do nothing if that fails because the terminal was closed."""
    try:
        say(text, err=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
