"""Rule 14: loads, stores and atomics with a generic address."""

from __future__ import annotations

from gpuemu_flow.lint.ptx.opcode import Opcode
from gpuemu_flow.lint.rules.base import Findings, KernelAnalysis, Rule, plural

_ALWAYS_SPECIFIC = frozenset({"async", "bulk"})


def find(analysis: KernelAnalysis) -> Findings:
    """Find memory accesses whose opcode names no state space."""
    return analysis.group(
        analysis.select("ld", "st", "atom", "red", where=_is_generic),
        lambda _, count: f"{plural(count, 'memory instruction')} with a generic address",
    )


def _is_generic(opcode: Opcode) -> bool:
    return not opcode.space and _ALWAYS_SPECIFIC.isdisjoint(opcode.segments)


RULE = Rule(
    id="generic-address",
    severity="info",
    what="`ld`, `st`, `atom` or `red` without `.global`, `.shared` or `.local`.",
    why="The hardware has to find out at run time which memory the address means, and the "
    "compiler cannot use the read-only path or reorder accesses of different spaces.",
    example="__device__ __noinline__ float get(const float* p) { return *p; }   // ld.f32",
    instead="Let the compiler see where pointers come from: inline the function, pass "
    "`__restrict__` kernel arguments, avoid pointers to pointers.",
    find=find,
)
