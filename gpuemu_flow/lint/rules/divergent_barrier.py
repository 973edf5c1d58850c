"""Rule 12: a block-wide barrier that some threads may not reach."""

from __future__ import annotations

from gpuemu_flow.lint.divergence import divergent_barriers
from gpuemu_flow.lint.rules.base import Finding, Findings, KernelAnalysis, Rule


def find(analysis: KernelAnalysis) -> Findings:
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
        yield Finding(
            f"{opcode} is {message}",
            analysis.place(barrier.barrier),
            actual=1,
            severity="info" if barrier.early_exit else "",
        )


RULE = Rule(
    id="divergent-barrier",
    severity="warning",
    what="`__syncthreads()` (`bar.sync`, `barrier.sync.aligned`) inside a branch or loop whose "
    "condition depends on the thread index. Barriers with a thread count are exempt. After an "
    "early `return` of the other threads: information only.",
    why="The barrier waits for all threads that have not ended. When some go around it, the "
    "kernel hangs, or threads meet at different barriers and read data too early.",
    example="if (threadIdx.x < 16) { s[threadIdx.x] = x; __syncthreads(); }",
    instead="Move the barrier out of the branch; make loop counts equal for all threads of the "
    "block and guard the work instead.",
    find=find,
)
