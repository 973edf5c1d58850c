"""``gpuemu-flow emulate`` and ``exec``: run a compiled kernel, or a CUDA program, on the CPU."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuemu_flow.cli.options import SEED, format_option, say, split_words
from gpuemu_flow.emulator import session, show
from gpuemu_flow.emulator.host import run
from gpuemu_flow.emulator.host.session import Options
from gpuemu_flow.emulator.launch import DEFAULT_BUDGET
from gpuemu_flow.emulator.session import parse_checks
from gpuemu_flow.report import json_writer

if TYPE_CHECKING:
    from gpuemu_flow.emulator.launch import LaunchResult
    from gpuemu_flow.emulator.session import NamedArgument


@click.command(short_help="Run a compiled kernel (PTX) on the CPU.")
@click.argument(
    "files", metavar="FILE.ptx...", nargs=-1, required=True,
    type=click.Path(dir_okay=False, path_type=Path),
)  # fmt: skip
@click.option("--entry", help="Name of the kernel; not needed when there is one.")
@click.option("--grid", default="1", metavar="X[,Y[,Z]]", help="Blocks.", show_default=True)
@click.option(
    "--block", default="1", metavar="X[,Y[,Z]]", help="Threads per block.", show_default=True
)
@click.option(
    "--cluster", metavar="X[,Y[,Z]]",
    help="Blocks per cluster.  [default: what the kernel was compiled for, or 1]",
)  # fmt: skip
@click.option(
    "--arg", "texts", multiple=True, metavar="NAME=VALUE",
    help="One argument, in the order of the kernel's parameters: x=f32[8,512], x=f32[8]:zeros, "
    "x=@file.npy, n=1000, scale=f32:0.5. Buffers hold random numbers, or with :zeros, :ones, "
    ":range, :empty these; those whose name begins with out are empty.",
)  # fmt: skip
@click.option(
    "--symbol", "symbols", multiple=True, metavar="NAME=VALUE",
    help="Content of a variable of the module, such as a __constant__: w=f32[4]:ones.",
)  # fmt: skip
@click.option("--shared", default=0, help="Bytes of dynamic shared memory.", show_default=True)
@click.option(
    "--check", "checks", multiple=True, metavar="NAME[,NAME]",
    help="Checks: mem, init, race, sync; order, which launches again; all; none.  "
    "[default: the first four]",
)  # fmt: skip
@click.option(
    "--backend", type=click.Choice(("auto", "numpy", "c")), default="auto",
    help="Back end: numpy, c (compiled by the system's C compiler), or auto.",
    show_default=True,
)  # fmt: skip
@click.option("--seed", type=SEED, default=0, help="Seed of random buffers.", show_default=True)
@click.option("--budget", type=click.IntRange(1), help="Largest number of thread instructions.")
@click.option(
    "--save", "saved", multiple=True, metavar="NAME=FILE.npy", help="Write a buffer to a file."
)
@click.option("--coverage", is_flag=True, help="Only say which instructions can run.")
@format_option("text", "json")
def emulate(
    files: tuple[Path, ...], entry: str | None, grid: str, block: str, cluster: str | None,
    texts: tuple[str, ...], symbols: tuple[str, ...], shared: int, checks: tuple[str, ...],
    backend: str, seed: int, budget: int | None, saved: tuple[str, ...], coverage: bool,
    output_format: str,
) -> None:  # fmt: skip
    """Run one kernel of a PTX file on the CPU, with the checks of compute-sanitizer and more.

    Several files (of nvcc -rdc=true) are linked. Needs no workspace, no GPU and no CUDA. Exit code
    1 if a check finds something.
    """
    as_json = output_format == "json"
    if coverage:
        found = session.cover(files)
        name = str(files[0])
        say(
            json_writer.dumps(show.coverage_json(name, found))
            if as_json
            else show.coverage_text(name, found)
        )
        raise SystemExit(0 if all(kernel.runs for kernel in found) else 1)
    run = session.run_file(
        files, entry, grid, block, texts, shared=shared, checks=split_words(checks), seed=seed,
        budget=budget, backend=backend, cluster=cluster, symbols=symbols,
    )  # fmt: skip
    _save(saved, run.arguments, run.result)
    render = show.result_json if as_json else show.result_text
    out = render(run.kernel, run.arguments, run.result, run.seconds)
    say(out if isinstance(out, str) else json_writer.dumps(out))
    raise SystemExit(1 if run.result.findings else 0)


def _save(saved: tuple[str, ...], arguments: list[NamedArgument], result: LaunchResult) -> None:
    session.save_buffers(saved, arguments, result)


# ``gpuemu-flow exec PROGRAM``: run a CUDA program on the CPU, as compute-sanitizer runs it.


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

    PROGRAM is a program built with nvcc -cudart shared -lineinfo -g, a .cu file, or any command
    that starts such programs, such as python. Exit code 86 with findings, 4 if a kernel could not
    be run, and else the program's.
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
