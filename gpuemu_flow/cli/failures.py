"""``gpuemu-flow failures``, ``minimize`` and ``reproduce``: what is done with recorded failures."""

from __future__ import annotations

from pathlib import Path

import click

from gpuemu_flow.build.signals import cancel_on_signals
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import (
    config_options,
    format_option,
    say,
    telling_damage,
    wants_color,
)
from gpuemu_flow.config.model import Overrides
from gpuemu_flow.fuzz.exporting import export_pytest
from gpuemu_flow.fuzz.failures import (
    find_failure,
    find_failures,
    find_or_make,
    fixed_ids,
    inputs_dropped,
    list_failures,
)
from gpuemu_flow.fuzz.failures import reproduce as run_again
from gpuemu_flow.fuzz.minimizing import minimise_failure
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
    workspace = telling_damage(Workspace())
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
    workspace = telling_damage(Workspace())
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


# ``gpuemu-flow minimize``: find the smallest case that fails as a recorded case does.


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


# ``gpuemu-flow reproduce``: run a recorded failure again, and tell whether it still fails.


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
    records = find_or_make(workspace, word, op, dtype=dtype, case_text=case_text)
    with cancel_on_signals() as cancel:
        found = run_again(workspace, records, cancel=cancel)
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
