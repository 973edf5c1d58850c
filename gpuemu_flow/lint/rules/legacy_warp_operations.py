"""Rule 20: warp operations without a member mask."""

from __future__ import annotations

from gpuemu_flow.lint.rules.base import Findings, KernelAnalysis, Rule, plural


def find(analysis: KernelAnalysis) -> Findings:
    """Find ``shfl`` and ``vote`` whose opcode has no ``.sync`` segment."""
    legacy = analysis.select("shfl", "vote", where=lambda o: "sync" not in o.segments)

    def describe(first: int, count: int) -> str:
        opcode = analysis.body.instructions[first].opcode.text
        return f"{plural(count, 'warp operation')} without .sync ({opcode})"

    return analysis.group(legacy, describe)


RULE = Rule(
    id="legacy-warp-operations",
    severity="error",
    what="`shfl` or `vote` without `.sync`.",
    why="Since Volta the threads of a warp need not run in step: without a member mask the "
    "result depends on which of them happen to be there. PTX 6.4 removed both for sm_70 and later.",
    example="__shfl_down(x, 16);      // shfl.down.b32",
    instead="`__shfl_down_sync(0xffffffff, x, 16)`, `__ballot_sync(mask, p)`.",
    find=find,
)
