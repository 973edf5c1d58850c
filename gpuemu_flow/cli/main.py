"""The command group and what all commands share: errors, exit codes, colour."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from pathlib import Path

import click

from gpuemu_flow import __version__
from gpuemu_flow.cli.completion import complete_names
from gpuemu_flow.cli.grants import add_grants
from gpuemu_flow.cli.say import say
from gpuemu_flow.errors import CancelledRunError, FlowError, Problem
from gpuemu_flow.plain_text import printable

INTERRUPTED = 130

COMMANDS = {
    "import": "import_:import_problems",
    "list": "list:list_tasks",
    **{
        name: f"{name}:{name}"
        for name in (
            "artifacts", "baseline", "cache", "calibrate", "ci", "clean", "completion", "config",
            "coverage", "daemon", "debug", "diff", "emulate", "explain", "failures", "fuzz",
            "graph", "init", "lint", "lsp", "minimize", "mutate", "report", "reproduce", "run",
            "score", "status", "test", "version", "watch",
        )
    },
}  # fmt: skip
"""The module below `cli` that holds each command, and its name there."""

RUN_CODE = frozenset({
    "run", "ci", "test", "fuzz", "reproduce", "minimize", "mutate", "calibrate", "lint", "watch",
    "debug", "score",
})  # fmt: skip
"""Commands that run code of the workspace."""


class Commands(click.Group):
    """The commands, each imported when it is asked for: together they cost as much as click."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None where there is none of that name."""
        return self.load(cmd_name) if cmd_name in COMMANDS else None

    def load(self, name: str) -> click.Command:
        """Import an existing command."""
        if name not in self.commands:
            module, _, attribute = COMMANDS[name].partition(":")
            found = importlib.import_module(f"gpuemu_flow.cli.{module}")
            command: click.Command = getattr(found, attribute)
            if name in RUN_CODE:
                add_grants(command)
            complete_names(command)
            self.add_command(command)
        return self.commands[name]

    def load_all(self) -> None:
        """Import every command."""
        for name in COMMANDS:
            self.load(name)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
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


def print_problems(problems: tuple[Problem, ...] | list[Problem]) -> None:
    """Print problems on standard error, one a line."""
    for problem in problems:
        say(printable(str(problem)), err=True)


def _completed(error: click.ClickException) -> click.ClickException:
    """Return a better error for an option that stands behind the command and belongs before it."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        name, command = error.option_name, error.ctx.command_path.partition(" ")[2]
        for option in cli.params:
            if name in option.opts:
                right = f"gpuemu-flow {name} {option.make_metavar(error.ctx)} {command}"
                return click.UsageError(f"{name} stands before the command: {right}", error.ctx)
    return error


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
        _completed(error).show()
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
        if error.filename is not None:
            from gpuemu_flow.store.atomic import disk_problem  # noqa: PLC0415 - seldom needed

            print_problems([disk_problem(error, error.filename)])
            return 3
        say(f"error: cannot write the output: {error.strerror}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 3
    return code if isinstance(code, int) else 0
