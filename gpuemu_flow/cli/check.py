"""``gpuemu-flow check``: judge one op by one reference, without a workspace."""

from __future__ import annotations

import click

from gpuemu_flow.cli.fuzz import parse_duration
from gpuemu_flow.cli.options import SEED, canonical_dtypes, format_option, split_words
from gpuemu_flow.cli.say import say, wants_color


@click.command(short_help="Judge one op by one reference, without a workspace.")
@click.argument("op", metavar="OP.py[:f]")
@click.argument("reference", metavar="REF.py[:g]")
@click.option("-i", "--input", "inputs", multiple=True, metavar="NAME=DTYPE[DIMS]|VALUE",
              help="What the signature does not say, as x=float32[M,N] or eps=1e-5.")  # fmt: skip
@click.option("--dtype", "dtypes", multiple=True, help="Dtypes of the op; default: float32.")
@click.option("--seconds", default="10", show_default=True, callback=parse_duration,
              metavar="TIME", help="Time for the cases.")  # fmt: skip
@click.option("--seed", type=SEED, default=42, show_default=True, help="Master seed.")
@click.option("--mutates", multiple=True, metavar="NAME", help="An input that the op may change.")
@click.option("--grid", default="", help="Of a CUDA kernel, as M or M,N; default: all elements.")
@click.option("--block", default="", help="Threads of a block of a CUDA kernel; default: 256.")
@format_option("text", "json")
def check(
    op: str,
    reference: str,
    inputs: tuple[str, ...],
    dtypes: tuple[str, ...],
    seconds: float,
    seed: int,
    mutates: tuple[str, ...],
    grid: str,
    block: str,
    output_format: str,
) -> None:
    """Judge OP by REF: functions, a CUDA kernel, or ModelNew beside Model.

    Nothing is written. Names, dtypes and shapes of inputs come from signatures and annotations;
    --input says what these do not. Exit codes: 0 passed, 1 failed, 2 something has to be said,
    3 the op crashed, 4 nothing was judged.
    """
    from gpuemu_flow.report.json_writer import dumps  # noqa: PLC0415
    from gpuemu_flow.report.text import Style  # noqa: PLC0415
    from gpuemu_flow.services.check import Request, run_check  # noqa: PLC0415

    names = canonical_dtypes(split_words(dtypes))
    found = run_check(
        Request(op, reference, inputs, names, seconds, seed, grid, block, split_words(mutates))
    )
    if output_format == "json":
        say(dumps(found.to_json()))
    else:
        say(found.text(Style(wants_color())))
    raise SystemExit(found.exit_code)
