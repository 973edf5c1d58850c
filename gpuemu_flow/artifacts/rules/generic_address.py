"""Rule 14: loads, stores and atomics with a generic address."""

from __future__ import annotations

from collections.abc import Iterator

from gpuemu_flow.artifacts.analysis import KernelAnalysis
from gpuemu_flow.artifacts.findings import RuleFinding
from gpuemu_flow.artifacts.ptx.opcode import Opcode
from gpuemu_flow.artifacts.rules.base import Rule, needs_ptx, plural, report_findings

ID = "generic-address"
_ALWAYS_SPECIFIC = frozenset({"async", "bulk"})


def find(analysis: KernelAnalysis) -> Iterator[RuleFinding]:
    """Find memory accesses whose opcode names no state space."""
    yield from analysis.group(
        analysis.select("ld", "st", "atom", "red", where=_is_generic),
        lambda _, count: f"{plural(count, 'memory instruction')} with a generic address",
    )


def _is_generic(opcode: Opcode) -> bool:
    return not opcode.space and _ALWAYS_SPECIFIC.isdisjoint(opcode.segments)


RULE = Rule(
    number=14,
    id=ID,
    severity="info",
    what="`ld`, `st`, `atom` or `red` without `.global`, `.shared` or `.local`.",
    why="The hardware has to find out at run time which memory the address means, and the "
    "compiler cannot use the read-only path or reorder accesses of different spaces.",
    example="__device__ __noinline__ float get(const float* p) { return *p; }   // ld.f32",
    instead="Let the compiler see where pointers come from: inline the function, pass "
    "`__restrict__` kernel arguments, avoid pointers to pointers.",
    check=report_findings(ID, "info"),
    find=find,
    unchecked=needs_ptx,
)
