"""Rule 18: correctly rounded division and square root."""

from __future__ import annotations

from gpuemu_flow.lint.rules.base import Findings, KernelAnalysis, Rule, plural


def find(analysis: KernelAnalysis) -> Findings:
    """Find ``div.rn.f32``, ``sqrt.rn.f32`` and ``rcp.rn.f32``."""
    exact = analysis.select(
        "div", "sqrt", "rcp", where=lambda o: o.type == "f32" and "rn" in o.segments
    )

    def describe(first: int, count: int) -> str:
        opcode = analysis.body.instructions[first].opcode.text
        loop = " in a loop" if analysis.in_loop(first) else ""
        return f"{plural(count, 'correctly rounded operation')}{loop} ({opcode})"

    return analysis.group(exact, describe)


RULE = Rule(
    id="exact-division",
    severity="info",
    what="`div.rn.f32`, `sqrt.rn.f32` or `rcp.rn.f32`.",
    why="Each is 8 to 20 instructions with a slow path; the approximate forms are one or two and "
    "are wrong by at most 2 ulp.",
    example="y[i] = x[i] / sum;      // div.rn.f32 per element",
    instead="Divide once and multiply, or use `__fdividef`, `rsqrtf`, or `-prec-div=false`, where "
    "the tolerance allows it.",
    find=find,
)
