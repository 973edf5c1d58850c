"""Rule 13: integer division or remainder inside a loop."""

from __future__ import annotations

from gpuemu_flow.lint.rules.base import Findings, KernelAnalysis, Rule, plural

_INTEGERS = frozenset({"u16", "s16", "u32", "s32", "u64", "s64"})


def find(analysis: KernelAnalysis) -> Findings:
    """Find ``div`` and ``rem`` of integers in loops."""
    divisions = analysis.select("div", "rem", where=lambda opcode: opcode.type in _INTEGERS)
    in_loops = [index for index in divisions if analysis.in_loop(index)]

    def describe(first: int, count: int) -> str:
        opcode = analysis.body.instructions[first].opcode.text
        return f"{plural(count, 'integer division')} in a loop ({opcode})"

    return analysis.group(in_loops, describe)


RULE = Rule(
    id="integer-division-in-loop",
    severity="warning",
    what="`div` or `rem` of integers inside a loop. Divisions by constants do not show: the "
    "compiler has made multiplications of them.",
    why="GPUs have no integer divider: a 32-bit division is about 20 instructions, a 64-bit one "
    "about 70 and often a call.",
    example="for (int i = t; i < n; i += 256) y[i] = x[i / w] + z[i % w];",
    instead="Keep row and column as two counters, divide once before the loop, make `w` a "
    "template parameter, or use 32-bit indices.",
    find=find,
)
