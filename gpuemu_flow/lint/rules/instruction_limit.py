"""Rule 24: more instructions than the policy allows."""

from __future__ import annotations

from gpuemu_flow.lint.rules.base import Finding, Findings, KernelPolicy, KernelView, Rule


def check(view: KernelView, policy: KernelPolicy) -> Findings:
    """Compare the number of PTX instructions with the policy's ``max_instructions``."""
    count, limit = view.metrics.instructions, policy.max_instructions
    if limit is not None and count is not None and count > limit:
        yield Finding(f"{count} PTX instructions, allowed are {limit}", actual=count, limit=limit)


def unchecked(view: KernelView, policy: KernelPolicy) -> str:
    """Return the reason why the rule cannot judge a kernel; empty if it can."""
    if policy.max_instructions is not None and view.metrics.instructions is None:
        return "needs the kernel's PTX"
    return ""


RULE = Rule(
    id="instruction-limit",
    severity="error",
    what="More PTX instructions than `max_instructions`, device functions that it calls included.",
    why="The user has set the limit: unrolling that gets out of hand fills the instruction cache.",
    example="artifact_checks = { max_instructions = 2000 }",
    instead="Lower `#pragma unroll`, or raise the limit.",
    check=check,
    unchecked=unchecked,
)
