"""``gpuemu-flow reproduce``: run a recorded failure again, and tell whether it still fails."""

from __future__ import annotations

import click

from gpuemu_flow.build.signals import cancel_on_signals
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import config_options, format_option
from gpuemu_flow.cli.say import say, wants_color
from gpuemu_flow.config.model import Overrides
from gpuemu_flow.fuzz import failures
from gpuemu_flow.report import failure_text, json_writer, text
from gpuemu_flow.report.minimal import minimal_of


@click.command(short_help="Run a recorded failure again.")
@click.argument("failure", metavar="SEED|ID", required=False)
@click.option("--seed", "seed_option", help="Seed of the failure, instead of the argument.")
@click.option("-o", "--op", help="Only failures of this op.")
@click.option("--dtype", help="Only in this dtype.")
@click.option("--case", "case_text", metavar="CASE", help="The case, as reports print it.")
@click.option("-v", "--verbose", is_flag=True, help="Show the tensors too.")
@config_options
@format_option("text", "json")
def reproduce(
    failure: str | None,
    seed_option: str | None,
    op: str | None,
    dtype: str | None,
    case_text: str | None,
    verbose: bool,
    profile: str,
    settings: tuple[str, ...],
    output_format: str,
) -> None:
    """Run a failing case again on its exact inputs.

    With --op, a case need not be recorded here: it is made from its seed. Give --case, too, if the
    run that printed the case had options or another master seed. Exit code 1 if it still fails; 0
    if it is fixed; 4 if there is no verdict on it, for example because it passes although nothing
    has changed since it failed; 2 if there is no such case.
    """
    word = failure or seed_option
    if not word:
        raise click.UsageError("give the seed or the id of a failure")
    workspace = Workspace(overrides=Overrides(profile=profile, settings=settings))
    records = failures.find_or_make(workspace, word, op, dtype=dtype, case_text=case_text)
    with cancel_on_signals() as cancel:
        found = failures.reproduce(workspace, records, cancel=cancel)
    if output_format == "json":
        objects = [json_writer.reproduction(r) for r in found]
        say(
            json_writer.dumps(
                objects[0] if len(objects) == 1 else {"schema_version": 1, "reproductions": objects}
            )
        )
    else:
        style = text.Style(wants_color())
        minima = (minimal_of(workspace, r.record) for r in found)
        shown = (
            failure_text.render_reproduction(r, minimal, style, verbose=verbose)
            for r, minimal in zip(found, minima, strict=True)
        )
        say("\n\n".join(shown))
    codes = {r.exit_code for r in found}
    raise SystemExit(next((code for code in (1, 4) if code in codes), 0))
