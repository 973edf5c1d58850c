"""Rule 8: launch bounds that cannot be met."""

from __future__ import annotations

from gpuemu_flow.lint.occupancy import (
    MAX_THREADS_PER_BLOCK,
    WARP_THREADS,
    limits_of,
    occupancy,
)
from gpuemu_flow.lint.rules.base import (
    Finding,
    Findings,
    KernelPolicy,
    KernelView,
    Rule,
    needs_ptx,
)


def check(view: KernelView, policy: KernelPolicy) -> Findings:
    """Report launch bounds that ptxas ignored, or that the multiprocessor cannot meet."""
    if view.unmet_bounds:
        yield Finding(f"ptxas: {view.unmet_bounds}")
        return
    excess = _beyond_limits(view) or _beyond_resources(view)
    if excess is not None:
        message, actual, limit = excess
        yield Finding(message, actual=actual, limit=limit)


def _beyond_limits(view: KernelView) -> tuple[str, int, int] | None:
    """Return a message about launch bounds above the architecture's limits, or None."""
    threads, blocks = view.bounds.max_threads, view.bounds.min_blocks
    limits = limits_of(view.arch)
    if threads > MAX_THREADS_PER_BLOCK:
        message = f"{threads} threads per block, a block has at most {MAX_THREADS_PER_BLOCK}"
        return message, threads, MAX_THREADS_PER_BLOCK
    if limits is None:
        return None
    if blocks > limits.max_blocks:
        message = f"{blocks} blocks per multiprocessor, {view.arch} has at most {limits.max_blocks}"
        return message, blocks, limits.max_blocks
    wanted = -(-threads // WARP_THREADS) * blocks
    if wanted > limits.max_warps:
        message = (
            f"{blocks} blocks of {threads} threads per multiprocessor, {view.arch} has "
            f"{limits.max_threads} threads: ptxas ignores .minnctapersm"
        )
        return message, wanted * WARP_THREADS, limits.max_threads
    return None


def _beyond_resources(view: KernelView) -> tuple[str, int, int] | None:
    """Return a message about launch bounds that the kernel's use of resources cannot meet."""
    bounds, metrics, limits = view.bounds, view.metrics, limits_of(view.arch)
    known = metrics.is_exact and metrics.registers is not None
    if limits is None or not known or not bounds.max_threads or not bounds.min_blocks:
        return None
    shared = (metrics.shared_bytes or 0) + (metrics.dynamic_shared_bytes or 0)
    reached = occupancy(
        limits, bounds.max_threads, metrics.registers or 0, shared, metrics.barriers or 0
    )
    if reached.blocks >= bounds.min_blocks:
        return None
    message = (
        f"the bounds ask for {bounds.min_blocks} blocks per multiprocessor, "
        f"{' and '.join(reached.limited_by)} allow {reached.blocks}"
    )
    return message, reached.blocks, bounds.min_blocks


RULE = Rule(
    id="unmet-launch-bounds",
    severity="warning",
    what="`__launch_bounds__(threads, blocks)` asks for more than a multiprocessor of this "
    "architecture has. From ptxas's warning, or computed.",
    why="ptxas then ignores the second number and the registers are not limited: the kernel "
    "that was tuned for two resident blocks runs with one.",
    example="__global__ void __launch_bounds__(1024, 2) k();   // sm_86 has 1,536 threads",
    instead="Choose the bounds per architecture (`#if __CUDA_ARCH__ == 860`), or ask for fewer "
    "threads or blocks.",
    check=check,
    unchecked=needs_ptx,
)
