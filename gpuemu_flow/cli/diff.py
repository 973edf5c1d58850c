"""``gpuemu-flow diff``: compare kernels and results with a baseline."""

from __future__ import annotations

import click

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import format_option
from gpuemu_flow.cli.progress import make_listener
from gpuemu_flow.cli.say import say, wants_color
from gpuemu_flow.report import baselines, json_writer, lint_text, text
from gpuemu_flow.store.baselines import BaselineStore


@click.command(short_help="Compare kernels and results with a baseline.")
@click.argument("tag", required=False)
@click.option("-b", "--baseline", "baseline_tag", metavar="TAG", help="Default: newest.")
@click.option(
    "--fail-on-regression/--no-fail-on-regression",
    default=None,
    help="Exit 1 when something got worse; default: as in [policies].",
)
@format_option("text", "json")
def diff(
    tag: str | None, baseline_tag: str | None, fail_on_regression: bool | None, output_format: str
) -> None:
    """Bring the workspace up to date and compare it with a baseline."""
    if tag is not None and baseline_tag not in (None, tag):
        raise click.UsageError("name one baseline")
    wanted = tag or baseline_tag
    workspace = Workspace()
    known = BaselineStore(workspace.cache)
    baseline = known.comparable(wanted) if wanted is not None else known.newest()
    with make_listener(live=wants_color() and output_format == "text") as listener:
        report = baselines.bring_up_to_date(workspace, listener, to_compare=True)
    if report.interrupted:
        raise SystemExit(130)
    found = baselines.diff(workspace, baseline, report)
    if output_format == "json":
        say(json_writer.dumps(json_writer.baseline_diff(found)))
    else:
        title = f"against {baseline.tag} of {baseline.created[:19].replace('T', ' ')} UTC"
        style = text.Style(wants_color())
        say(lint_text.render_diff(found.kernels, found.results, style, title=title))
        for problem in report.problems:
            say(text.printable(str(problem)), err=True)
    gate = fail_on_regression
    if gate is None:
        gate = workspace.settings.fail_on_regression
    if gate and found.has_regressions:
        raise SystemExit(1)
    raise SystemExit(3 if any(not problem.warning for problem in report.problems) else 0)
