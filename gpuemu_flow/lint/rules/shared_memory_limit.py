"""Rule 23: shared memory above the policy's limit."""

from __future__ import annotations

from gpuemu_flow.lint.rules.base import Finding, Findings, KernelPolicy, KernelView, Rule


def check(view: KernelView, policy: KernelPolicy) -> Findings:
    """Compare a block's static shared memory, plus dynamic if known, with ``max_shared_memory``."""
    static, dynamic = view.metrics.shared_bytes, view.metrics.dynamic_shared_bytes
    limit = policy.max_shared_memory
    if limit is None or static is None:
        return
    total = static + (dynamic or 0)
    if total > limit:
        parts = "static only" if dynamic is None else f"{static} static, {dynamic} dynamic"
        yield Finding(
            f"{total} bytes of shared memory per block ({parts}), allowed are {limit}",
            actual=total,
            limit=limit,
        )


def unchecked(view: KernelView, policy: KernelPolicy) -> str:
    """Return the reason why the rule cannot judge the shared memory; empty if it can."""
    if policy.max_shared_memory is not None and view.metrics.shared_bytes is None:
        return "shared memory is unknown"
    return ""


RULE = Rule(
    id="shared-memory-limit",
    severity="error",
    what="Static shared memory per block, plus dynamic if the configuration states it, above "
    "`max_shared_memory`.",
    why="The user has set the limit, usually to keep a number of blocks resident.",
    example="artifact_checks = { max_shared_memory = 32768 }",
    instead="Make the tiles smaller, or raise the limit.",
    check=check,
    unchecked=unchecked,
)
