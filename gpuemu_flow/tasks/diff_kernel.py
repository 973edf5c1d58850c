"""Stage ``diff`` of a kernel: find changes of its metrics since the previous run.

Reads the lint results of all architectures, and the previous result of this stage.
"""

from __future__ import annotations

from gpuemu_flow.lint.diff import INFO, diff_kernels
from gpuemu_flow.lint.kernel import KernelMetrics
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.types import Json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import (
    KernelDiffParams,
    StageContext,
    StageResult,
    TaskSpec,
    params_of,
    read_result,
)
from gpuemu_flow.tasks.diff import read_previous, result_of

STAGE = stages.KERNEL_DIFF


def run(spec: TaskSpec, context: StageContext) -> StageResult:
    """Compare a kernel's metrics with those of the previous run."""
    current: dict[str, list[Json]] = {}
    previous = read_previous(context.cache, spec)
    for source in spec.inputs:
        arch = source.role.partition(":")[2]
        found = read_result(context.cache, source.task, stages.LINT)
        # Keep metrics of a kernel that could not be built, to compare with them later.
        current[arch] = found["metrics"] or previous.get(arch, [])
    changes = []
    for arch, metrics in current.items():
        before = convert(previous.get(arch, ()), list[KernelMetrics])
        if not before:
            continue
        after = convert(metrics, list[KernelMetrics])
        forbidden = tuple(params_of(KernelDiffParams, spec.params).forbidden)
        for diff in diff_kernels(before, after, forbidden=forbidden):
            for judgement in diff.judgements:
                if judgement.kind != INFO:
                    old, new = diff.figures(judgement.metric)
                    changes.append(
                        {
                            "kernel": diff.name,
                            "arch": diff.arch,
                            "kind": judgement.kind,
                            "metric": judgement.metric,
                            "message": judgement.message,
                            "old": old,
                            "new": new,
                        }
                    )
    content = result_of(STAGE, current, previous, changes)
    return StageResult(content, values={"changes": len(changes)})
