"""``gpuemu-flow calibrate``: suggest tolerances from a trusted implementation."""

from __future__ import annotations

import click

from gpuemu_flow.build.signals import cancel_on_signals
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import format_option
from gpuemu_flow.cli.say import say
from gpuemu_flow.fuzz import measures
from gpuemu_flow.numerics.calibrate import to_toml
from gpuemu_flow.report import json_writer


@click.command(short_help="Suggest tolerances from a trusted op.")
@click.argument("op")
@click.option(
    "-n",
    "--cases",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Cases per dtype; those that overflow on purpose are left out.",
)
@click.option("--write", is_flag=True, help="Put them into gpuemu.toml.")
@format_option("text", "json")
def calibrate(op: str, cases: int, write: bool, output_format: str) -> None:
    """Suggest tolerances from the errors of OP. Use this only if you trust that OP is correct.

    Prints an [ops.tolerances] table, with the figures that each number is based on.
    """
    workspace = Workspace()
    with cancel_on_signals() as cancel:
        found = measures.calibrate_op(workspace, op, cases=cases, cancel=cancel)
    if output_format == "json":
        suggestions = [calibration.to_json() for calibration in found]
        shown = {"schema_version": 1, "op": op, "calibrations": suggestions, "written": write}
        say(json_writer.dumps(shown))
    else:
        say(to_toml(found), nl=False)
        for calibration in found:
            for note in calibration.notes:
                say(f"# {calibration.dtype}: {note}")
    if write:
        path = measures.write_tolerances(workspace, op, found)
        say(f"written to {path.name}", err=True)
