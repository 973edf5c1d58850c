"""Rule 21: instructions that the policy forbids."""

from __future__ import annotations

from gpuemu_flow.lint.policy import SPILL, is_sass_pattern, matching_opcodes, matching_symbols
from gpuemu_flow.lint.rules.base import (
    Finding,
    Findings,
    KernelPolicy,
    KernelView,
    Rule,
    plural,
)


def check(view: KernelView, policy: KernelPolicy) -> Findings:
    """Yield a violation for each forbidden pattern, at the first instruction that matches."""
    for pattern in policy.forbidden_instructions:
        if pattern == SPILL:
            spills = view.metrics.spill_instructions or view.metrics.spill_bytes or 0
            if spills:
                yield Finding("forbidden: spills", actual=spills, limit=0)
        elif is_sass_pattern(pattern):
            sass = view.metrics.sass_opcodes or {}
            found = matching_opcodes(pattern, sass)
            if found:
                count = sum(sass[opcode] for opcode in found)
                message = f"forbidden {pattern}: {plural(count, 'machine instruction')}"
                yield Finding(f"{message} ({', '.join(found[:3])})", actual=count, limit=0)
        else:
            yield from _check_ptx(view, pattern)


def _check_ptx(view: KernelView, pattern: str) -> Findings:
    opcodes, calls = view.metrics.opcodes, view.metrics.calls
    found = matching_opcodes(pattern, opcodes)
    called = matching_symbols(pattern, calls)
    count = sum(opcodes[o] for o in found) + sum(calls[name] for name in called)
    if not count:
        return
    places = [view.opcode_places[o] for o in found if o in view.opcode_places]
    places += [view.call_places[name] for name in called if name in view.call_places]
    yield Finding(
        f"forbidden {pattern}: {plural(count, 'instruction')} ({', '.join((found + called)[:3])})",
        place=min(places, key=lambda place: place.line, default=None),
        actual=count,
        limit=0,
    )


def unchecked(view: KernelView, policy: KernelPolicy) -> str:
    """Return the reason why the rule cannot search a kernel for some patterns; empty if it can."""
    sass = [p for p in policy.forbidden_instructions if is_sass_pattern(p)]
    ptx = [p for p in policy.forbidden_instructions if not is_sass_pattern(p) and p != SPILL]
    return unchecked_patterns(view, ptx, sass)


def unchecked_patterns(view: KernelView, ptx: list[str], sass: list[str]) -> str:
    """Return the reason why a kernel cannot be searched for some patterns; empty if it can.

    `ptx` are patterns for PTX instructions, `sass` patterns for machine instructions.
    """
    if sass and view.metrics.sass_opcodes is None:
        return f"{', '.join(sass)}: machine instructions need a cubin and nvdisasm"
    if ptx and not view.has_ptx:
        return f"{', '.join(ptx)}: needs the kernel's PTX"
    return ""


RULE = Rule(
    id="forbidden-instruction",
    severity="error",
    what="Instructions or calls that match `forbidden_instructions`. Patterns are compared with "
    "the opcode's dotted segments; upper-case ones with machine instructions.",
    why="The configuration forbids them.",
    example='forbidden_instructions = ["f64", "ld.local", "printf", "STL"]',
    instead="Remove the instruction or the pattern.",
    check=check,
    unchecked=unchecked,
)
