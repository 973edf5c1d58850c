"""The command group, and the errors and exit codes that all commands share."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuemu_flow import __version__
from gpuemu_flow.build.signals import (
    repeating_interrupts,
    terminating_as_interrupting,
    unwrapped_interrupts,
)
from gpuemu_flow.cli.options import VARIABLE, add_grants, say
from gpuemu_flow.model.errors import CancelledRunError, FlowError, Problem, UsageError, did_you_mean
from gpuemu_flow.model.plain_text import printable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "artifacts": "Show the kernels' registers, spills, occupancy, instruction mix.",
    "baseline": "Store, list and move baselines.",
    "cache": "Look after the caches.",
    "calibrate": "Suggest tolerances from a trusted op.",
    "check": "Judge one op by one reference, without a workspace.",
    "ci": "Check everything, for a CI service.",
    "clean": "Forget results, or the whole cache.",
    "completion": "Print a shell's completion script.",
    "config": "Check the configuration.",
    "coverage": "Show what cases exercised, and the gaps.",
    "daemon": "Manage the daemon that interactive clients talk to, one per workspace and user.",
    "debug": "Look into recorded failures.",
    "diff": "Compare kernels and results with a baseline.",
    "emulate": "Run a compiled kernel (PTX) on the CPU.",
    "exec": "Run a CUDA program on the CPU, and check its kernels.",
    "explain": "Say why a task would run, or is current.",
    "failures": "List, show and export failures.",
    "fuzz": "Try many seeded cases of ops.",
    "graph": "Draw the task graph.",
    "import": "Make a workspace of another collection's problems.",
    "init": "Write a new workspace.",
    "lint": "Check kernels against the lint rules.",
    "list": "List tasks, groups and targets.",
    "lsp": "Serve an editor over standard input and output.",
    "mcp": "Serve an agent over standard input and output.",
    "minimize": "Shrink a recorded failure.",
    "mutate": "Count the planted bugs that the check finds.",
    "report": "Report what is known, as a file.",
    "reproduce": "Run a recorded failure again.",
    "run": "Validate what changed.",
    "score": "Score the candidates of each problem.",
    "status": "Show the workspace, its results, cache and daemon.",
    "test": "Check ops, one line each.",
    "version": "Show versions.",
    "watch": "Validate again at every save.",
}
"""Maps each command to its help in one line, so that a list of them imports none."""

_PLACES = {
    "import": "init:import_problems",
    "list": "list:list_tasks",
    **{name: f"{module}:{name}" for module, names in {
        "baseline": ("diff",), "cache": ("clean", "status"), "config": ("version",),
        "emulate": ("exec",), "failures": ("minimize", "reproduce"), "fuzz": ("check",),
        "lint": ("artifacts",), "list": ("explain", "graph"),
        "measures": ("calibrate", "coverage", "mutate"), "report": ("ci", "test"),
        "servers": ("lsp", "mcp"),
    }.items() for name in names},
}  # fmt: skip
"""Where a command is, if not in the module and under the name that are its own."""

RUN_CODE = frozenset({
    "run", "check", "ci", "test", "fuzz", "reproduce", "minimize", "mutate", "calibrate", "lint",
    "watch", "debug", "score",
})  # fmt: skip
"""Commands that run code of the workspace."""


class Commands(click.Group):
    """The commands. Each is imported on demand, because importing all of them would take long."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem as Item  # noqa: PLC0415

        begun = [Item(n, help=h) for n, h in COMMANDS.items() if n.startswith(incomplete)]
        return [*begun, *click.Command.shell_complete(self, ctx, incomplete)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; return None if there is no command of that name."""
        return self.load(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; if there is none, name the most similar one."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}; {did_you_mean(args[0], sorted(COMMANDS))}")
        return super().resolve_command(ctx, args)

    def load(self, name: str) -> click.Command:
        if name not in self.commands:
            module, _, attribute = _PLACES.get(name, f"{name}:{name}").partition(":")
            found = importlib.import_module(f"gpuemu_flow.cli.{module}")
            command: click.Command = getattr(found, attribute)
            if name in RUN_CODE:
                add_grants(command)
            if VARIABLE in os.environ:  # only a shell that completes needs the names
                from gpuemu_flow.cli.completion import complete_names  # noqa: PLC0415

                complete_names(command)
            self.add_command(command)
        return self.commands[name]

    def load_all(self) -> None:
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
            raise UsageError(Problem("config-not-found", f"-f names {file}, which does not exist"))
        os.environ["GPUEMU_CONFIG"] = str(file.absolute())


def _completed(error: click.ClickException) -> click.ClickException:
    """Replace the error for a global option that was written after the command. The new error says
    that the option belongs before the command. Any other error is returned unchanged."""
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
    try:
        say(text, err=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
