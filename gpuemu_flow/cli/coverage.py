"""``gpuemu-flow coverage``: show which combinations of cases were judged, and the gaps."""

from __future__ import annotations

from pathlib import Path

import click

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import format_option
from gpuemu_flow.cli.say import say
from gpuemu_flow.fuzz.session import measure_coverage
from gpuemu_flow.report import fuzz_text, json_writer
from gpuemu_flow.store.private_files import write_atomic


@click.command(short_help="Show what cases exercised, and the gaps.")
@click.argument("ops", nargs=-1, metavar="[OP]...")
@format_option("text", "json", "codecov")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.")
def coverage(ops: tuple[str, ...], output_format: str, output: Path | None) -> None:
    """Show which op × dtype × shape class × layout × strategy were judged, and the gaps."""
    found = measure_coverage(Workspace(), ops)
    if output_format == "text":
        shown = fuzz_text.render_coverage(found)
    else:
        shown = json_writer.dumps(json_writer.coverage(found, output_format))
    if output is None:
        say(shown)
    else:
        write_atomic(output, shown.encode() + b"\n")
