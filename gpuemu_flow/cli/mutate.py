"""``gpuemu-flow mutate``: measure how many planted bugs an op's check finds."""

from __future__ import annotations

import click

from gpuemu_flow.build.signals import cancel_on_signals
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import format_option
from gpuemu_flow.cli.say import say, wants_color
from gpuemu_flow.fuzz.measures import mutate as measure
from gpuemu_flow.report import fuzz_text, json_writer, text


@click.command(short_help="Count the planted bugs that the check finds.")
@click.argument("op")
@format_option("text", "json")
def mutate(op: str, output_format: str) -> None:
    """Plant known bug kinds in the reference's output and count those that OP's check finds.

    If OP is a compiled kernel, bugs are also planted in its PTX, and the kernel is run with them.

    Exit code 1 if a trivial candidate passes, which means that the check is too weak for this op;
    4 if no bug could be planted, because no case has a finite value to compare.
    """
    with cancel_on_signals() as cancel:
        found = measure(Workspace(), op, cancel=cancel)
    if output_format == "json":
        shown = {
            "schema_version": 1,
            "op": op,
            "cases": found.cases,
            **found.score.to_json(),
            "trivial": found.trivial.to_json(),
            **({} if found.kernel is None else {"kernel": found.kernel.to_json()}),
            **({"kernel_untold": found.kernel_untold} if found.kernel_untold else {}),
        }
        say(json_writer.dumps(shown))
    else:
        say(fuzz_text.render_mutation(found, text.Style(wants_color())))
    planted = bool(found.score.killed or found.score.survivors)
    raise SystemExit(1 if found.trivial.accepted else 0 if planted else 4)
