"""The command group and what all commands share: errors, exit codes, colour."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import click

from gpuemu_flow import __version__
from gpuemu_flow.cli.artifacts import artifacts
from gpuemu_flow.cli.baseline import baseline
from gpuemu_flow.cli.calibrate import calibrate
from gpuemu_flow.cli.ci import ci
from gpuemu_flow.cli.clean import clean
from gpuemu_flow.cli.completion import complete_names, completion
from gpuemu_flow.cli.config import config
from gpuemu_flow.cli.coverage import coverage
from gpuemu_flow.cli.daemon import daemon
from gpuemu_flow.cli.debug import debug
from gpuemu_flow.cli.diff import diff
from gpuemu_flow.cli.emulate import emulate
from gpuemu_flow.cli.explain import explain
from gpuemu_flow.cli.failures import failures
from gpuemu_flow.cli.fuzz import fuzz
from gpuemu_flow.cli.grants import add_grants
from gpuemu_flow.cli.graph import graph
from gpuemu_flow.cli.import_ import import_problems
from gpuemu_flow.cli.init import init
from gpuemu_flow.cli.lint import lint
from gpuemu_flow.cli.list import list_tasks
from gpuemu_flow.cli.lsp import lsp
from gpuemu_flow.cli.minimize import minimize
from gpuemu_flow.cli.mutate import mutate
from gpuemu_flow.cli.report import report
from gpuemu_flow.cli.reproduce import reproduce
from gpuemu_flow.cli.run import run
from gpuemu_flow.cli.say import say
from gpuemu_flow.cli.score import score
from gpuemu_flow.cli.status import status
from gpuemu_flow.cli.test import test
from gpuemu_flow.cli.version import version
from gpuemu_flow.cli.watch import watch
from gpuemu_flow.errors import CancelledRunError, FlowError, Problem
from gpuemu_flow.plain_text import printable

INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="gpuemu-flow")
@click.option(
    "-C",
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Do all from this folder, as make does.",
)
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path),
    help="Configuration in place of the nearest gpuemu.toml; GPUEMU_CONFIG names it, too.",
)
def cli(directory: Path | None, file: Path | None) -> None:
    """Know that a GPU kernel is right, without a GPU.

    Exit codes: 0 all passed; 1 a check failed or regressed; 2 usage or configuration;
    3 an op crashed or a needed tool is absent; 4 nothing was validated; 124 cut off by a
    time limit; 130 interrupted.
    """
    if directory is not None:
        os.chdir(directory)
    if file is not None:
        if not file.exists():
            from gpuemu_flow.errors import Problem, UsageError  # noqa: PLC0415

            raise UsageError(Problem("config-not-found", f"-f names {file}, which does not exist"))
        os.environ["GPUEMU_CONFIG"] = str(file.absolute())


COMMANDS = (
    run, ci, test, report, fuzz, failures, reproduce, minimize, mutate, calibrate, coverage,
    lint, artifacts, emulate, baseline, diff, explain, list_tasks,
    graph, clean, status, config, version, daemon, watch, lsp, init,
    import_problems, score, debug, completion,
)  # fmt: skip

RUNNING = (
    run,
    ci,
    test,
    fuzz,
    reproduce,
    minimize,
    mutate,
    calibrate,
    lint,
    watch,
    debug,
    score,
)
add_grants(RUNNING)
for command in COMMANDS:
    cli.add_command(command)
complete_names(cli)


def print_problems(problems: tuple[Problem, ...] | list[Problem]) -> None:
    """Print problems on standard error, one a line."""
    for problem in problems:
        say(printable(str(problem)), err=True)


_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def run_cli() -> int:
    """Run the command line and return the documented exit code."""
    try:
        try:
            code = cli.main(standalone_mode=False)
        except SystemExit as end:  # how commands tell theirs
            code = end.code
        sys.stdout.flush()
    except FlowError as error:
        print_problems(error.problems)
        code = error.exit_code
    except click.exceptions.Abort:
        code = INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = 2
    except (KeyboardInterrupt, CancelledRunError):
        say("interrupted", err=True)
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader went away (`| head`); what follows must not complain about it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        say(f"error: cannot write the output: {error.strerror}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 3
    return code if isinstance(code, int) else 0
