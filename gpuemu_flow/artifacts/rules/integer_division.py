"""Rule 13: integer division or remainder inside a loop."""

from __future__ import annotations

from collections.abc import Iterator

from gpuemu_flow.artifacts.analysis import KernelAnalysis
from gpuemu_flow.artifacts.findings import RuleFinding
from gpuemu_flow.artifacts.rules.base import Rule, needs_ptx, plural, report_findings

ID = "integer-division-in-loop"
_INTEGERS = frozenset({"u16", "s16", "u32", "s32", "u64", "s64"})


def find(analysis: KernelAnalysis) -> Iterator[RuleFinding]:
    """Find ``div`` and ``rem`` of integers in loops."""
    divisions = analysis.select("div", "rem", where=lambda opcode: opcode.type in _INTEGERS)
    in_loops = [index for index in divisions if analysis.in_loop(index)]

    def describe(first: int, count: int) -> str:
        opcode = analysis.body.instructions[first].opcode.text
        return f"{plural(count, 'integer division')} in a loop ({opcode})"

    yield from analysis.group(in_loops, describe)


RULE = Rule(
    number=13,
    id=ID,
    severity="warning",
    what="`div` or `rem` of integers inside a loop. Divisions by constants do not show: the "
    "compiler has made multiplications of them.",
    why="GPUs have no integer divider: a 32-bit division is about 20 instructions, a 64-bit one "
    "about 70 and often a call.",
    example="for (int i = t; i < n; i += 256) y[i] = x[i / w] + z[i % w];",
    instead="Keep row and column as two counters, divide once before the loop, make `w` a "
    "template parameter, or use 32-bit indices.",
    check=report_findings(ID, "warning"),
    find=find,
    unchecked=needs_ptx,
)
