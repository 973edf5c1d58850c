"""Rule 15: atomics inside a loop."""

from __future__ import annotations

from gpuemu_flow.lint.rules.base import Findings, KernelAnalysis, Rule, plural


def find(analysis: KernelAnalysis) -> Findings:
    """Find ``atom`` and ``red`` instructions in loops."""
    atomics = analysis.select("atom", "red", where=lambda o: "async" not in o.segments)
    in_loops = [index for index in atomics if analysis.in_loop(index)]

    def describe(first: int, count: int) -> str:
        opcode = analysis.body.instructions[first].opcode
        space = opcode.space or "generic"
        return f"{plural(count, 'atomic operation')} on {space} memory in a loop ({opcode.text})"

    return analysis.group(in_loops, describe)


RULE = Rule(
    id="atomics-in-loop",
    severity="info",
    what="`atom` or `red` inside a loop, also the loop of an emulated atomic (compare and swap).",
    why="Atomics on one address are carried out one after the other. Once per element instead "
    "of once per thread or block, they limit the kernel's speed.",
    example="for (int i = t; i < n; i += stride) atomicAdd(&hist[x[i]], 1);   // global memory",
    instead="Gather in registers or shared memory, reduce over the warp (`__reduce_add_sync`, "
    "shuffles), and add once per block.",
    find=find,
)
