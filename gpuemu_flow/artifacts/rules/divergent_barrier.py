"""Rule 12: a block-wide barrier that some threads may not reach."""

from __future__ import annotations

from collections.abc import Iterator

from gpuemu_flow.artifacts.analysis import KernelAnalysis
from gpuemu_flow.artifacts.divergence import divergent_barriers
from gpuemu_flow.artifacts.findings import RuleFinding
from gpuemu_flow.artifacts.rules.base import Rule, needs_ptx, report_findings

ID = "divergent-barrier"


def find(analysis: KernelAnalysis) -> Iterator[RuleFinding]:
    """Find barriers that only some threads may reach, depending on the thread index."""
    for barrier in divergent_barriers(analysis):
        line = analysis.place(barrier.branch).line
        if barrier.early_exit:
            message = (
                f"reached only by threads that pass the branch at PTX line {line}; the others "
                "have ended"
            )
        else:
            message = (
                f"not reached by all threads: the branch at PTX line {line} depends on the thread"
            )
        opcode = analysis.body.instructions[barrier.barrier].opcode.text
        yield RuleFinding(
            f"{opcode} is {message}",
            analysis.place(barrier.barrier),
            severity="info" if barrier.early_exit else "",
        )


RULE = Rule(
    number=12,
    id=ID,
    severity="warning",
    what="`__syncthreads()` (`bar.sync`, `barrier.sync.aligned`) inside a branch or loop whose "
    "condition depends on the thread index. Barriers with a thread count are exempt. After an "
    "early `return` of the other threads: information only.",
    why="The barrier waits for all threads that have not ended. When some go around it, the "
    "kernel hangs, or threads meet at different barriers and read data too early.",
    example="if (threadIdx.x < 16) { s[threadIdx.x] = x; __syncthreads(); }",
    instead="Move the barrier out of the branch; make loop counts equal for all threads of the "
    "block and guard the work instead.",
    check=report_findings(ID, "warning"),
    find=find,
    unchecked=needs_ptx,
)
