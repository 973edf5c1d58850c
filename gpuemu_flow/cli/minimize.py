"""``gpuemu-flow minimize``: find the smallest case that fails as a recorded case does."""

from __future__ import annotations

import click

from gpuemu_flow.build.signals import cancel_on_signals
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import format_option
from gpuemu_flow.cli.say import say, wants_color
from gpuemu_flow.fuzz.failures import find_failure
from gpuemu_flow.fuzz.minimizing import minimise_failure
from gpuemu_flow.report import failure_text, json_writer, text
from gpuemu_flow.report.minimal import minimal_of


@click.command(short_help="Shrink a recorded failure.")
@click.argument("failure", metavar="SEED|ID", required=False)
@click.option("--seed", "seed_option", help="Seed of the failure, instead of the argument.")
@click.option("-o", "--op", help="Only failures of this op.")
@click.option(
    "--strategy",
    type=click.Choice(
        ["all", "binary-search-dims", "binary-search-values", "shrink-values", "shrink-all"]
    ),
    default="all",
    show_default=True,
    help="Shrink shapes alone, values alone, or shapes, values and layouts.",
)
@click.option("--max-iters", "--max_iters", "budget", type=click.IntRange(1), default=2000,
              show_default=True, help="How often the op may be run.")  # fmt: skip
@format_option("text", "json")
def minimize(
    failure: str | None,
    seed_option: str | None,
    op: str | None,
    strategy: str,
    budget: int,
    output_format: str,
) -> None:
    """Shrink a failing case by running its op again and again.

    Exit code 0 if it was minimised (the failure stays recorded), 1 if it no longer fails.
    """
    word = failure or seed_option
    if not word:
        raise click.UsageError("give the seed or the id of a failure")
    known = {"shrink-values": "binary-search-values", "shrink-all": "all"}
    workspace = Workspace()
    record = find_failure(workspace, word, op)
    with cancel_on_signals() as cancel:
        found = minimise_failure(
            workspace, record, strategy=known.get(strategy, strategy), budget=budget, cancel=cancel
        )
    if output_format == "json":
        say(json_writer.dumps(json_writer.minimization(found)))
    else:
        smaller = found.minimized
        minimal = None if smaller is None else minimal_of(workspace, smaller)
        say(failure_text.render_minimization(found, minimal, text.Style(wants_color())))
    raise SystemExit(0 if found.minimized is not None else 1)
