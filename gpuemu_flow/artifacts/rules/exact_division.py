"""Rule 18: correctly rounded division and square root."""

from __future__ import annotations

from collections.abc import Iterator

from gpuemu_flow.artifacts.analysis import KernelAnalysis
from gpuemu_flow.artifacts.findings import RuleFinding
from gpuemu_flow.artifacts.rules.base import Rule, needs_ptx, plural, report_findings

ID = "exact-division"


def find(analysis: KernelAnalysis) -> Iterator[RuleFinding]:
    """Find ``div.rn.f32``, ``sqrt.rn.f32`` and ``rcp.rn.f32``."""
    exact = analysis.select(
        "div", "sqrt", "rcp", where=lambda o: o.type == "f32" and "rn" in o.segments
    )

    def describe(first: int, count: int) -> str:
        opcode = analysis.body.instructions[first].opcode.text
        loop = " in a loop" if analysis.in_loop(first) else ""
        return f"{plural(count, 'correctly rounded operation')}{loop} ({opcode})"

    yield from analysis.group(exact, describe)


RULE = Rule(
    number=18,
    id=ID,
    severity="info",
    what="`div.rn.f32`, `sqrt.rn.f32` or `rcp.rn.f32`.",
    why="Each is 8 to 20 instructions with a slow path; the approximate forms are one or two and "
    "are wrong by at most 2 ulp.",
    example="y[i] = x[i] / sum;      // div.rn.f32 per element",
    instead="Divide once and multiply, or use `__fdividef`, `rsqrtf`, or `-prec-div=false`, where "
    "the tolerance allows it.",
    check=report_findings(ID, "info"),
    find=find,
    unchecked=needs_ptx,
)
