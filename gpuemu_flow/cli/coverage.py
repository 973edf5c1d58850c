"""``gpuemu-flow coverage``: show which combinations of cases were judged, and the gaps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from msgspec.structs import replace

from gpuemu_flow.build.graph import Skip
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cases.coverage import Row
from gpuemu_flow.cli.options import format_option
from gpuemu_flow.cli.say import say
from gpuemu_flow.fuzz.session import fuzz_coverage, measure_coverage
from gpuemu_flow.judge.fuzz_results import CoverageReport
from gpuemu_flow.report import fuzz_text, json_writer
from gpuemu_flow.report.submissions import submitted_results
from gpuemu_flow.store.private_files import write_atomic


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
