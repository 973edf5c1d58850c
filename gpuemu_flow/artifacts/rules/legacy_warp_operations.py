"""Rule 20: warp operations without a member mask."""

from __future__ import annotations

from collections.abc import Iterator

from gpuemu_flow.artifacts.analysis import KernelAnalysis
from gpuemu_flow.artifacts.findings import RuleFinding
from gpuemu_flow.artifacts.rules.base import Rule, needs_ptx, plural, report_findings

ID = "legacy-warp-operations"


def find(analysis: KernelAnalysis) -> Iterator[RuleFinding]:
    """Find ``shfl`` and ``vote`` whose opcode has no ``.sync`` segment."""
    legacy = analysis.select("shfl", "vote", where=lambda o: "sync" not in o.segments)

    def describe(first: int, count: int) -> str:
        opcode = analysis.body.instructions[first].opcode.text
        return f"{plural(count, 'warp operation')} without .sync ({opcode})"

    yield from analysis.group(legacy, describe)


RULE = Rule(
    number=20,
    id=ID,
    severity="error",
    what="`shfl` or `vote` without `.sync`.",
    why="Since Volta the threads of a warp need not run in step: without a member mask the "
    "result depends on which of them happen to be there. PTX 6.4 removed both for sm_70 and later.",
    example="__shfl_down(x, 16);      // shfl.down.b32",
    instead="`__shfl_down_sync(0xffffffff, x, 16)`, `__ballot_sync(mask, p)`.",
    check=report_findings(ID, "error"),
    find=find,
    unchecked=needs_ptx,
)
