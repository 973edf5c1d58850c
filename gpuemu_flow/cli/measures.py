"""``gpuemu-flow mutate``, ``calibrate`` and ``coverage``: measure how well ops are checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from msgspec.structs import replace

from gpuemu_flow.build.graph import Skip
from gpuemu_flow.build.signals import cancel_on_signals
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cases.coverage import Row
from gpuemu_flow.cli.options import format_option, say, wants_color
from gpuemu_flow.fuzz import measures
from gpuemu_flow.fuzz.measures import mutate as measure
from gpuemu_flow.fuzz.session import fuzz_coverage, measure_coverage
from gpuemu_flow.judge.fuzz_results import CoverageReport
from gpuemu_flow.model.decoding import plain
from gpuemu_flow.numerics.calibrate import calibrate as measured
from gpuemu_flow.numerics.calibrate import to_toml
from gpuemu_flow.report import fuzz_text, json_writer, text
from gpuemu_flow.report.submissions import submitted_errors, submitted_results
from gpuemu_flow.store.private_files import write_atomic

# ``gpuemu-flow mutate``: measure how many planted bugs an op's check finds.


@click.command(short_help="Count the planted bugs that the check finds.")
@click.argument("op")
@format_option("text", "json")
def mutate(op: str, output_format: str) -> None:
    """Plant known bug kinds in the reference's output and count those that OP's check finds.

    If OP's kernels run on the emulator, bugs are also planted in their PTX.

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
            **plain(found.score),
            "trivial": found.trivial,
            **({} if found.kernel is None else {"kernel": found.kernel}),
            **({"kernel_untold": found.kernel_untold} if found.kernel_untold else {}),
        }
        say(json_writer.dumps(shown))
    else:
        say(fuzz_text.render_mutation(found, text.Style(wants_color())))
    planted = bool(found.score.killed or found.score.survivors)
    raise SystemExit(1 if found.trivial.accepted else 0 if planted else 4)


# ``gpuemu-flow calibrate``: suggest tolerances from a trusted implementation.


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
@format_option("text", "json")
def calibrate(op: str, cases: int, output_format: str) -> None:
    """Suggest tolerances from the errors of OP, or of what clients submitted for it.

    Use this only if you trust that OP is correct.

    Prints an [ops.tolerances] table, with the figures that each number is based on.
    """
    workspace = Workspace()
    if any(skip.op == op and skip.dtype for skip in workspace.graph.skips):
        found = measured(submitted_errors(workspace, op, cases))
    else:
        with cancel_on_signals() as cancel:
            found = measures.calibrate_op(workspace, op, cases=cases, cancel=cancel)
    if output_format == "json":
        shown = {"schema_version": 1, "op": op, "calibrations": found}
        say(json_writer.dumps(shown))
    else:
        say(to_toml(found), nl=False)
        for calibration in found:
            for note in calibration.notes:
                say(f"# {calibration.dtype}: {note}")


# ``gpuemu-flow coverage``: show which combinations of cases were judged, and the gaps.


def _submitted(workspace: Workspace, clients: list[Skip]) -> Iterator[Row]:
    """Yield a row for each op and dtype that only clients run: how many cases they submitted."""
    judged = submitted_results(workspace, clients)
    for skip in clients:
        result = judged.get((skip.op, skip.dtype))
        cases = 0 if result is None else result.cases
        yield Row(skip.op, skip.dtype, cases, {}, 0 if result is None else result.inconclusive)


@click.command(short_help="Show what cases exercised, and the gaps.")
@click.argument("ops", nargs=-1, metavar="[OP]...")
@format_option("text", "json", "codecov")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.")
def coverage(ops: tuple[str, ...], output_format: str, output: Path | None) -> None:
    """Show which op × dtype × shape class × layout × strategy were judged, and the gaps."""
    workspace = Workspace()
    clients = [s for s in workspace.graph.skips if s.dtype and (not ops or s.op in ops)]
    here = [op for op in ops if op not in {skip.op for skip in clients}]
    if here or not ops:
        found = measure_coverage(workspace, here)
    else:
        found = CoverageReport(fuzz_coverage(workspace), (), ())
    if clients:
        found = replace(found, rows=(*found.rows, *_submitted(workspace, clients)))
    if output_format == "text":
        shown = fuzz_text.render_coverage(found)
    else:
        shown = json_writer.dumps(json_writer.coverage(found, output_format))
    if output is None:
        say(shown)
    else:
        write_atomic(output, shown.encode() + b"\n")
