"""``gpuemu-flow ci``: check everything in one process and write reports for CI services."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import (
    NO_CONFIRM,
    SEED_OR_RANDOM,
    config_options,
    executor_options,
    part_options,
    seed_overrides,
)
from gpuemu_flow.cli.progress import make_listener, say_looking
from gpuemu_flow.cli.report import (
    FORMATS,
    check_outputs,
    output_option,
    publish,
    report_format_option,
    tell_ci,
    wants_pictures,
)
from gpuemu_flow.cli.say import wants_color
from gpuemu_flow.report.ci import QUICK, THOROUGH, ReportRequest, check
from gpuemu_flow.report.clean_run import save_if_clean

if TYPE_CHECKING:
    from gpuemu_flow.build.selection import Shard
    from gpuemu_flow.cli.options import ExecutorOptions


@click.command(short_help="Check everything, for a CI service.")
@click.argument("words", nargs=-1, metavar="[run] [quick|thorough|OP|TASK|GROUP|TARGET]...")
@click.option("--quick", is_flag=True, help="Only the dtypes of ci.quick_dtypes.")
@click.option(
    "--baseline", metavar="TAG", help="Compare with this baseline, a name or an exported file."
)
@click.option(
    "--parallel", type=click.IntRange(0, 4096), metavar="N", help="Tasks at a time; 0: one per CPU."
)
@click.option(
    "--fail-on-regression/--no-fail-on-regression",
    default=None,
    help="Exit 1 when something got worse; default with a baseline: as in [policies].",
)
@click.option("--require-all", is_flag=True, help="Exit 4 where anything got no verdict.")
@click.option("--allow-empty", is_flag=True, help="Exit 0 where nothing could be validated.")
@executor_options
@part_options
@config_options
@NO_CONFIRM
@SEED_OR_RANDOM
@report_format_option(*FORMATS)
@output_option
def ci(
    words: tuple[str, ...],
    quick: bool,
    baseline: str | None,
    parallel: int | None,
    fail_on_regression: bool | None,
    require_all: bool,
    allow_empty: bool,
    executor: ExecutorOptions,
    since: str,
    shard: Shard | None,
    profile: str,
    settings: tuple[str, ...],
    confirm: bool,
    seed: int | str | None,
    output_format: str,
    outputs: tuple[Path, ...],
) -> None:
    """Check everything without a daemon, or only what the words select.

    A run that takes longer than ci.thorough_timeout is stopped, lists what is missing, and ends
    with exit code 124. Several files can be written at once:
    -o results.xml -o report.html -o report.md
    """
    chosen = words[1:] if words[:1] == ("run",) else words
    if QUICK in chosen:
        chosen, quick = tuple(word for word in chosen if word != QUICK), True
    if quick and THOROUGH in chosen:
        raise click.UsageError("choose one of quick and thorough")
    if len(chosen) > 1 and THOROUGH in chosen:
        raise click.UsageError("thorough means everything; leave out the other words")
    if require_all and allow_empty:
        raise click.UsageError("--require-all and --allow-empty contradict each other")
    check_outputs(outputs)
    mode = QUICK if quick else THOROUGH
    given = frozenset({"jobs"} if parallel is not None else ())
    workspace = Workspace(overrides=seed_overrides(seed, mode, profile, settings, chosen, given))
    own = [parallel, workspace.target.jobs, workspace.config.ci.parallel_jobs]
    jobs = next((number for number in own if number is not None), 0)
    request = ReportRequest(
        chosen,
        quick=quick,
        baseline=baseline,
        jobs=parallel,
        fail_on_regression=fail_on_regression,
        pictures=wants_pictures(outputs, output_format),
        require_all=require_all,
        confirm=confirm,
        since=since,
        shard=shard,
    )
    with (
        executor.open_cluster(jobs) as cluster,
        make_listener(live=wants_color() and output_format == "text") as listener,
    ):
        request = replace(request, elsewhere=cluster)
        report = check(workspace, request, listener, announce=say_looking, conclude=save_if_clean)
    publish(
        report,
        outputs,
        output_format,
        warn_threshold=workspace.settings.warn_threshold,
    )
    tell_ci(report)
    code = report.exit_code
    raise SystemExit(0 if code == 4 and allow_empty else code)
