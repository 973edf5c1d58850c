"""The command group, and the errors and exit codes that all commands share."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from gpuemu_flow import __version__
from gpuemu_flow.cli.completion import complete_names
from gpuemu_flow.cli.options import add_grants
from gpuemu_flow.cli.say import say
from gpuemu_flow.engine.signals import (
    repeating_interrupts,
    terminating_as_interrupting,
    unwrapped_interrupts,
)
from gpuemu_flow.errors import CancelledRunError, FlowError, Problem
from gpuemu_flow.plain_text import printable

COMMANDS = {
    "import": "import_:import_problems",
    "list": "list:list_tasks",
    **{
        name: f"{name}:{name}"
        for name in (
            "artifacts", "baseline", "cache", "calibrate", "ci", "clean", "completion", "config",
            "coverage", "daemon", "debug", "diff", "emulate", "exec", "explain", "failures", "fuzz",
            "graph", "init", "lint", "lsp", "minimize", "mutate", "report", "reproduce", "run",
            "score", "status", "test", "version", "watch",
        )
    },
}  # fmt: skip
"""Maps each command to ``MODULE:NAME``, a module below `cli` and the command's name in it."""

RUN_CODE = frozenset({
    "run", "ci", "test", "fuzz", "reproduce", "minimize", "mutate", "calibrate", "lint", "watch",
    "debug", "score",
})  # fmt: skip
"""Commands that run code of the workspace."""


class Commands(click.Group):
    """The commands. Each is imported on demand, because importing all of them would take long."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; return None if there is no command of that name."""
        return self.load(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; if there is none, name the most similar one."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from gpuemu_flow.errors import did_you_mean  # noqa: PLC0415 - seldom needed

            ctx.fail(f"there is no command {args[0]!r}; {did_you_mean(args[0], sorted(COMMANDS))}")
        return super().resolve_command(ctx, args)

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


def _completed(error: click.ClickException) -> click.ClickException:
    """Replace the error for a global option that was written after the command.

    The new error says that the option belongs before the command. Any other error is returned
    unchanged.
    """
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        name, command = error.option_name, error.ctx.command_path.partition(" ")[2]
        for option in cli.params:
            if name in option.opts:
                right = f"gpuemu-flow {name} {option.make_metavar(error.ctx)} {command}"
                return click.UsageError(f"write {name} before the command: {right}", error.ctx)
    return error


def run_cli() -> int:
    """Run the command line and return the documented exit code."""
    return exit_code_of(_run_command)


def _run_command() -> object:
    """Run the command line; return its exit code if it has one."""
    try:
        return cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        _completed(error).show()
        return 2


# End a command: show its errors, and turn its outcome into an exit code.

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
            from gpuemu_flow.store.private_files import disk_problem  # noqa: PLC0415 - seldom needed

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
