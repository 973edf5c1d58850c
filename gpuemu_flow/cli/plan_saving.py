"""Once all results have passed, store a plan that lets the next command answer immediately."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuemu_flow.engine.session import RunOutcome
    from gpuemu_flow.engine.workspace import Workspace
    from gpuemu_flow.results.model import RunReport


def save_plan(workspace: Workspace, outcome: RunOutcome, report: RunReport) -> None:
    """Store the plan for the next ``run`` if every task is current and every result passed."""
    from gpuemu_flow.engine import plan_file  # noqa: PLC0415
    from gpuemu_flow.reports import text  # noqa: PLC0415
    from gpuemu_flow.results.model import STANDING  # noqa: PLC0415

    everything = outcome.everything and outcome.all_current(workspace)
    standing = [p for p in report.problems if p.slug in STANDING]
    sound = report.exit_code == 0 and len(standing) == len(report.problems)
    if sound and everything and workspace.has_plain_cases:
        lines = [text.up_to_date_line(report), *(text.printable(str(p)) for p in standing)]
        plan_file.save_plan(workspace, "\n".join(lines))
