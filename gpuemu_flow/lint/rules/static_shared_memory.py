"""Rule 7: more static shared memory than a block can have."""

from __future__ import annotations

from gpuemu_flow.lint.occupancy import STATIC_SHARED_LIMIT
from gpuemu_flow.lint.rules.base import Finding, Findings, KernelPolicy, KernelView, Rule


def check(view: KernelView, policy: KernelPolicy) -> Findings:
    """Compare a block's static shared memory with the 48 KB that every architecture permits."""
    shared = view.metrics.shared_bytes
    if shared is not None and shared > STATIC_SHARED_LIMIT:
        yield Finding(
            f"{shared} bytes of static shared memory, a block has at most {STATIC_SHARED_LIMIT}",
            actual=shared,
            limit=STATIC_SHARED_LIMIT,
        )


RULE = Rule(
    id="static-shared-memory",
    severity="error",
    what="Static `__shared__` variables of more than 49,152 bytes in one kernel.",
    why="That is the limit on every architecture: ptxas refuses the kernel, or it fails when it "
    "is loaded. Only dynamic shared memory may be larger.",
    example="__shared__ float tile[128][128];      // 65,536 bytes",
    instead="Declare it `extern __shared__`, pass the size at launch, and raise "
    "`cudaFuncAttributeMaxDynamicSharedMemorySize`.",
    check=check,
)
