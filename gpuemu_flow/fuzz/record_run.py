"""Record the failing cases of a run; if there are none, import no further modules."""

from __future__ import annotations

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.judge.results import RunReport
from gpuemu_flow.model.errors import Problem


def record_run(workspace: Workspace, report: RunReport) -> list[Problem]:
    fresh = [r for r in report.results if r.failures and not r.cached]
    if not fresh:
        return []
    from gpuemu_flow.fuzz.failures import record_results  # noqa: PLC0415 - brings numpy

    return record_results(workspace, fresh)
