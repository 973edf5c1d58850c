"""``gpuemu-flow emulate FILE.ptx``: run a single compiled kernel, or tell whether it can run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuemu_flow.cli.options import SEED, format_option, split_words
from gpuemu_flow.cli.say import say
from gpuemu_flow.emulator import session, show
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
    help="Checks: mem, init, race, sync; order, contract, approx, which launch again; all; none.  "
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
    1 if a check finds something; 4 if nothing else is wrong, but the result depends on which
    operations the compiler fuses or the GPU approximates.
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
    raise SystemExit(session.exit_code(run.result))


def _save(saved: tuple[str, ...], arguments: list[NamedArgument], result: LaunchResult) -> None:
    session.save_buffers(saved, arguments, result)
