"""Rule 24: more instructions than the policy allows."""

from __future__ import annotations

from collections.abc import Iterator

from gpuemu_flow.artifacts.findings import Violation
from gpuemu_flow.artifacts.policy import KernelPolicy
from gpuemu_flow.artifacts.rules.base import Rule, violation
from gpuemu_flow.artifacts.view import KernelView

ID = "instruction-limit"


def check(view: KernelView, policy: KernelPolicy) -> Iterator[Violation]:
    """Compare the number of PTX instructions with the policy's ``max_instructions``."""
    count, limit = view.metrics.instructions, policy.max_instructions
    if limit is not None and count is not None and count > limit:
        yield violation(
            view,
            ID,
            "error",
            f"{count} PTX instructions, allowed are {limit}",
            actual=count,
            limit=limit,
        )


def unchecked(view: KernelView, policy: KernelPolicy) -> str:
    """Return the reason why the rule cannot judge a kernel; empty if it can."""
    if policy.max_instructions is not None and view.metrics.instructions is None:
        return "needs the kernel's PTX"
    return ""


RULE = Rule(
    number=24,
    id=ID,
    severity="error",
    what="More PTX instructions than `max_instructions`, device functions that it calls included.",
    why="The user has set the limit: unrolling that gets out of hand fills the instruction cache.",
    example="artifact_checks = { max_instructions = 2000 }",
    instead="Lower `#pragma unroll`, or raise the limit.",
    check=check,
    unchecked=unchecked,
)
