"""Stage ``op``: run the op under test on every case.

Reads the cases, and the op's script with all its imports. Writes the digest of the outputs, or the
error, for each case. Durations are not written. Therefore, equal outputs give an equal result,
and the comparison does not run again.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuemu_flow.judge.subject import FULL_CHECKS
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import (
    StageContext,
    StageResult,
    TaskSpec,
    program_of,
    read_planned,
)
from gpuemu_flow.tasks.parts.execute import execute
from gpuemu_flow.workers.api import Request

STAGE = stages.OP
VERSION = stages.VERSIONS[STAGE]


def run(spec: TaskSpec, context: StageContext, code: Mapping[str, str]) -> StageResult:
    """Run the op on the cases that have no result yet."""
    cases, _ = read_planned(spec, context)
    execution = execute(
        spec,
        context,
        program=program_of(spec.settings),
        code=code,
        requests=[Request(case) for case in cases],
        checks=FULL_CHECKS,
    )
    content = {"stage": STAGE, "version": VERSION, "outcomes": execution.records()}
    return StageResult(
        content,
        complete=all(outcome.ok for outcome in execution.outcomes),
        executed=execution.executed > 0,
        values={
            "cases": len(execution.outcomes),
            "executed": execution.executed,
            "duration_s": execution.duration_s,
        },
        discovered=execution.used,
    )
