"""``gpuemu-flow exec PROGRAM``: run a CUDA program on the CPU, as compute-sanitizer runs it."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from gpuemu_flow.cli.options import split_words
from gpuemu_flow.cli.say import say
from gpuemu_flow.emulator.host import run
from gpuemu_flow.emulator.host.session import Options
from gpuemu_flow.emulator.launch import DEFAULT_BUDGET
from gpuemu_flow.emulator.session import parse_checks


@click.command(
    short_help="Run a CUDA program on the CPU, and check its kernels.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--check", "checks", multiple=True, metavar="NAME[,NAME]",
    help="Checks: mem, init, race, sync; none.  [default: all four]",
)  # fmt: skip
@click.option("--leaks", is_flag=True, help="Report memory that was never freed.")
@click.option("--nvcc", "flags", default="", metavar="FLAGS", help="Flags for PROGRAM.cu.")
@click.option("--arch", default=80, help="The GPU's architecture: 80 for sm_80.", show_default=True)
@click.option(
    "--backend", type=click.Choice(("auto", "numpy", "c")), default="auto", help="Back end.",
    show_default=True,
)  # fmt: skip
@click.option("--budget", type=click.IntRange(1), help="Most thread instructions of a launch.")
@click.option("--quiet", is_flag=True, help="Show only the summary.")
@click.option(
    "--report", "report_file", metavar="FILE.json", type=click.Path(path_type=Path),
    help="Write findings and launches to a file.",
)  # fmt: skip
def exec(  # noqa: A001 - the command's name
    program: str, arguments: tuple[str, ...], checks: tuple[str, ...], leaks: bool, flags: str,
    arch: int, backend: str, budget: int | None, quiet: bool, report_file: Path | None,
) -> None:  # fmt: skip
    """Run a CUDA program without a GPU: its kernels by the emulator, its host code as it is.

    PROGRAM is a program built with nvcc -cudart shared -lineinfo, a .cu file, or any command that
    starts such programs, such as python. Exit code 86 with findings, 4 if a kernel could not be
    run, and else the program's.
    """
    options = Options(
        parse_checks(split_words(checks)), backend, budget or DEFAULT_BUDGET, leaks, quiet, arch
    )
    given = arguments[1:] if arguments[:1] == ("--",) else arguments
    started = run.prepare(program, shlex.split(flags), arch)
    executed = run.run_program([started, *given], options)
    say(run.summary(executed), err=True)
    if report_file is not None:
        report_file.write_text(run.as_json(executed))
    raise SystemExit(executed.exit_code)
