"""``gpuemu-flow failures``: list recorded failures, newest first; show or export one."""

from __future__ import annotations

from pathlib import Path

import click

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import format_option
from gpuemu_flow.cli.say import say, wants_color
from gpuemu_flow.fuzz.exporting import export_pytest
from gpuemu_flow.fuzz.failures import (
    find_failure,
    find_failures,
    fixed_ids,
    inputs_dropped,
    list_failures,
)
from gpuemu_flow.report import failure_text, json_writer, text
from gpuemu_flow.report.minimal import minimal_of


@click.group(invoke_without_command=True, short_help="List, show and export failures.")
@click.option("-o", "--op", help="Only this op's failures.")
@click.option(
    "-l",
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Show only the N newest.",
)
@format_option("text", "json", "published")
@click.pass_context
def failures(context: click.Context, op: str | None, limit: int, output_format: str) -> None:
    """List recorded failures, newest first; those whose cases pass now are in a separate table.

    Intermittent failures, whose cases passed although neither code nor configuration had changed,
    are in that table, too.

    The format `published` is the one that the published extension for VS Code reads.
    """
    if context.invoked_subcommand is not None:
        return
    workspace = Workspace()
    found = list_failures(workspace, op, limit)
    if output_format == "published":
        lines = [failure_text.published_row(failure) for failure in found]
        say("\n".join(lines) if lines else "no failures are recorded")
        return
    mended = fixed_ids(workspace, found)
    if output_format == "json":
        public = [
            {
                **one.to_public_json(),
                "mended": one.id in mended,
                **({"intermittent": True} if one.intermittent else {}),
            }
            for one in found
        ]
        say(json_writer.dumps({"schema_version": 1, "failures": public}))
    elif not found:
        say("no failures are recorded")
    else:
        say("\n".join(failure_text.render_list(found, mended)))
    for problem in inputs_dropped(workspace):
        say(str(problem), err=True)


@failures.command()
@click.argument("failure", metavar="ID|SEED")
@format_option("text", "json")
def show(failure: str, output_format: str) -> None:
    """Show one failure."""
    workspace = Workspace()
    records = find_failures(workspace, failure)
    if output_format == "json":
        found = [
            {
                **r.to_public_json(),
                "result": r.result,
                "minimal": json_writer.minimal(minimal_of(workspace, r)),
            }
            for r in records
        ]
        say(json_writer.dumps({"schema_version": 1, "failures": found}))
    else:
        style = text.Style(wants_color())
        shown = (failure_text.render_failure(r, minimal_of(workspace, r), style) for r in records)
        say("\n\n".join(shown))


@failures.command()
@click.argument("failure", metavar="ID|SEED")
@click.option("--pytest", "as_pytest", is_flag=True, help="A test file that needs numpy alone.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.")
def export(failure: str, as_pytest: bool, output: Path | None) -> None:
    """Write a failure as files that do not need this workspace, and print their path."""
    if not as_pytest:
        raise click.UsageError("say in which form: --pytest")
    workspace = Workspace()
    record = find_failure(workspace, failure)
    say(str(export_pytest(workspace, record, output)))
