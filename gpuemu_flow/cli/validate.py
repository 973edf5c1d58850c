"""Do the work of `run` once its options are known."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuemu_flow.cli.progress import make_listener, say_looking
from gpuemu_flow.cli.say import say, wants_color
from gpuemu_flow.engine import session
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.reporting.report import run_and_report

if TYPE_CHECKING:
    from gpuemu_flow.engine.elsewhere import Elsewhere
    from gpuemu_flow.results.model import RunReport


def _here(_jobs: int) -> AbstractContextManager[None]:
    return nullcontext()


def validate(
    workspace: Workspace,
    options: session.RunOptions,
    open_cluster: Callable[[int], AbstractContextManager[Elsewhere | None]] = _here,
    *,
    output_format: str = "text",
    confirm: bool = True,
) -> int:
    """Run stale tasks, record and show the results, and return the exit code."""
    gc.freeze()  # spares the garbage collector modules and graph, all of which stay
    jobs = session.count_jobs(workspace, options)
    with (
        open_cluster(jobs) as cluster,
        make_listener(live=wants_color() and output_format == "text") as listener,
    ):
        options = replace(options, elsewhere=cluster)
        outcome, report = run_and_report(workspace, options, listener)
        # Modules for after the run are imported now, so that an edited op is called earlier.
        from gpuemu_flow.fuzz.causes import cause_budget, with_causes  # noqa: PLC0415

        budget = cause_budget(workspace, confirm=confirm)
        report = with_causes(workspace, report, budget=budget, announce=say_looking)
    _conclude(workspace, outcome, report)
    _show_report(workspace, report, output_format)
    return report.exit_code


def _conclude(workspace: Workspace, outcome: session.RunOutcome, report: RunReport) -> None:
    """Store the results of a run for later commands."""
    from gpuemu_flow.engine.clean_run import save_if_clean  # noqa: PLC0415
    from gpuemu_flow.fuzz.record_run import record_run  # noqa: PLC0415
    from gpuemu_flow.reporting import history  # noqa: PLC0415

    for problem in record_run(workspace, report):
        say(str(problem), err=True)
    if outcome.executed:
        history.append(workspace.cache, report)
    save_if_clean(workspace, outcome, report)


def _show_report(workspace: Workspace, report: RunReport, output_format: str) -> None:
    from gpuemu_flow.reports import json_writer, text  # noqa: PLC0415

    if output_format == "json":
        say(json_writer.dumps(json_writer.run_report(report)))
        return
    warn = workspace.settings.warn_threshold
    say(text.render_run(report, text.Style(wants_color()), warn_threshold=warn))
