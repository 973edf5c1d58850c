"""``gpuemu-flow run``: bring the workspace up to date and report the results."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from gpuemu_flow.cli.options import (
    NO_CONFIRM,
    SEED,
    canonical_dtypes,
    config_options,
    format_option,
    parse_triggers,
    part_options,
    say,
    wants_color,
)
from gpuemu_flow.config.model import Overrides
from gpuemu_flow.report import text

if TYPE_CHECKING:
    from gpuemu_flow.build.graph import Shard
    from gpuemu_flow.build.session import RunOptions, RunOutcome
    from gpuemu_flow.build.workspace import Workspace
    from gpuemu_flow.judge.results import RunReport


_MOST_CASES = 1_000_000  # as `config.tables_ops.MAX_CASES`, whose import would cost the help text


@click.command(short_help="Validate what changed.")
@click.argument("words", nargs=-1, metavar="[OP|TASK|GROUP|TARGET]...")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would run, and run nothing.")
@click.option(
    "--summary",
    is_flag=True,
    help="Show a line per task: state, last duration, outputs; run nothing.",
)
@click.option("--explain", is_flag=True, help="Say for each task that runs why it does.")
@click.option("-j", "--jobs", type=click.IntRange(0), help="Tasks at a time; 0: one per CPU.")
@click.option(
    "-x/-k",
    "--fail-fast/--keep-going",
    default=None,
    help="Stop at the first op that fails, or go on (the default).",
)
@click.option("--seed", type=SEED, help="Master seed in place of the configuration's.")
@click.option("--dtype", "dtypes", multiple=True, help="Only this dtype; may be repeated.")
@click.option(
    "--rerun-triggers",
    metavar="code,params,input,env",
    help="Which changes make a task run again; default: all four.",
)
@click.option("-B", "--force", is_flag=True, help="Run everything selected, whatever is cached.")
@click.option(
    "--until",
    multiple=True,
    metavar="TASK",
    help="Only this task, op or group, and what it needs; may be repeated.",
)
@click.option(
    "--forcerun",
    multiple=True,
    metavar="TASK",
    help="Run it and what depends on it, whatever is cached; may be repeated.",
)
@click.option("--cases", type=click.IntRange(1, _MOST_CASES), help="Cases per op and dtype.")
@part_options
@config_options
@NO_CONFIRM
@format_option("text", "json")
def run(
    words: tuple[str, ...],
    dry_run: bool,
    summary: bool,
    explain: bool,
    jobs: int | None,
    fail_fast: bool | None,
    seed: int | None,
    dtypes: tuple[str, ...],
    rerun_triggers: str | None,
    force: bool,
    until: tuple[str, ...],
    forcerun: tuple[str, ...],
    cases: int | None,
    since: str,
    shard: Shard | None,
    profile: str,
    settings: tuple[str, ...],
    confirm: bool,
    output_format: str,
) -> None:
    """Validate what changed: ops, tasks, groups or targets; without words, everything."""
    from gpuemu_flow.build import session  # noqa: PLC0415
    from gpuemu_flow.build.workspace import Workspace  # noqa: PLC0415

    options = session.RunOptions(
        words=words,
        dtypes=canonical_dtypes(dtypes),
        jobs=jobs,
        fail_fast=fail_fast,
        force=force,
        since=since,
        shard=shard,
        until=until,
        forced=forcerun,
        dry_run=dry_run or explain,
        triggers=parse_triggers(rerun_triggers),
    )
    overrides = Overrides(
        seed=seed,
        cases=cases,
        profile=profile,
        settings=settings,
    )
    workspace = Workspace(overrides=overrides)
    if summary or dry_run or explain:
        from gpuemu_flow.cli.list import show_plan, show_summary  # noqa: PLC0415

        if summary:
            show_summary(workspace, options, output_format)
            return
        show_plan(workspace, options, output_format, explain=explain, alone=dry_run)
        if dry_run:
            return
        options = replace(options, dry_run=False)

    raise SystemExit(_validate(workspace, options, output_format=output_format, confirm=confirm))


def _validate(
    workspace: Workspace,
    options: RunOptions,
    *,
    output_format: str,
    confirm: bool,
) -> int:
    """Run stale tasks, record and show the results, and return the exit code."""
    from gpuemu_flow.cli.progress import make_listener, say_looking  # noqa: PLC0415
    from gpuemu_flow.report.report import run_and_report  # noqa: PLC0415

    gc.freeze()  # spares the garbage collector modules and graph, all of which stay
    begin, live = time.perf_counter(), wants_color() and output_format == "text"
    warnings = workspace.settings.warnings if live else ()
    for problem in warnings:  # before a run that may be long
        say(str(problem), err=True)
    with make_listener(live=live) as listener:
        outcome, report = run_and_report(workspace, options, listener)
        search = False
        if report.failures:  # only then: what they need brings numpy
            from gpuemu_flow.fuzz.causes import cause_budget, with_causes  # noqa: PLC0415

            budget = cause_budget(workspace, confirm=confirm)
            search = budget > 0
            report = with_causes(workspace, report, budget=budget, announce=say_looking)
    _conclude(workspace, outcome, report)
    if report.failures:
        from gpuemu_flow.report.minimal import with_minima  # noqa: PLC0415

        report = with_minima(workspace, report, search=search)
    told = tuple(problem for problem in report.problems if problem not in warnings)
    report = replace(report, problems=told, duration_s=time.perf_counter() - begin)
    _show_report(workspace, report, output_format)
    return report.exit_code


def _conclude(workspace: Workspace, outcome: RunOutcome, report: RunReport) -> None:
    from gpuemu_flow.report import history  # noqa: PLC0415
    from gpuemu_flow.report.report import record_run  # noqa: PLC0415

    for problem in record_run(workspace, report):
        say(str(problem), err=True)
    if outcome.executed:
        history.append(workspace.cache, report)
    history.save_if_clean(workspace, outcome, report)


def _show_report(workspace: Workspace, report: RunReport, output_format: str) -> None:
    if output_format == "json":
        from gpuemu_flow.report import json_writer  # noqa: PLC0415

        say(json_writer.dumps(json_writer.run_report(report)))
        return
    warn = workspace.settings.warn_threshold
    say(text.render_run(report, text.Style(wants_color()), warn_threshold=warn))
