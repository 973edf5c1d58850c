"""Rule 5: printf, assert, malloc and free left in a kernel."""

from __future__ import annotations

from gpuemu_flow.lint.rules.base import Findings, KernelAnalysis, Rule, plural

DEBUG_CALLS: dict[str, str] = {
    "vprintf": "printf",
    "__assertfail": "assert",
    "__assert_fail": "assert",
    "malloc": "malloc",
    "free": "free",
}
"""The call that a programmer wrote, by the runtime function that PTX calls."""


def find(analysis: KernelAnalysis) -> Findings:
    """Find calls of the device runtime's debugging and heap functions."""
    calls = {
        index: written
        for callee, written in DEBUG_CALLS.items()
        for index in analysis.calls.get(callee, ())
    }
    return analysis.group(
        sorted(calls), lambda first, count: f"{plural(count, 'call')} of {calls[first]}"
    )


RULE = Rule(
    id="debug-call",
    severity="warning",
    what="Calls of `vprintf`, `__assertfail`, `malloc` or `free` in device code.",
    why="A call keeps at least 24 registers busy, puts arguments on the stack and keeps the "
    "compiler from moving code across it. Device malloc is slow and limited to a small heap.",
    example='if (i == 0) printf("%f\\n", x);      // left in after debugging',
    instead="Remove it, or compile asserts out with `-DNDEBUG`. Give the kernel its scratch "
    "memory as an argument.",
    find=find,
)
