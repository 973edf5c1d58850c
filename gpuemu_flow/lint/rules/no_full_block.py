"""Rule 9: a kernel that cannot be launched with 1,024 threads."""

from __future__ import annotations

from gpuemu_flow.lint.occupancy import MAX_THREADS_PER_BLOCK, REGISTERS_PER_SM
from gpuemu_flow.lint.rules.base import (
    Finding,
    Findings,
    KernelPolicy,
    KernelView,
    Rule,
    needs_exact_figures,
)

_REGISTER_UNIT = 8


def check(view: KernelView, policy: KernelPolicy) -> Findings:
    """Report a kernel that needs too many registers per thread for a block of 1,024 threads.

    A kernel whose block size is known is not reported.
    """
    metrics = view.metrics
    reached = metrics.occupancy
    size_is_known = reached is not None and not reached.assumed_threads
    if not metrics.is_exact or metrics.registers is None or size_is_known:
        return
    allocated = -(-metrics.registers // _REGISTER_UNIT) * _REGISTER_UNIT
    if allocated * MAX_THREADS_PER_BLOCK > REGISTERS_PER_SM:
        most = REGISTERS_PER_SM // allocated // 128 * 128
        yield Finding(
            f"{metrics.registers} registers per thread: a launch with more than {most} threads "
            "fails, and no launch bounds say so",
            actual=metrics.registers,
            limit=REGISTERS_PER_SM // MAX_THREADS_PER_BLOCK,
        )


RULE = Rule(
    id="no-full-block",
    severity="info",
    what="A kernel without launch bounds needs so many registers that 1,024 threads of it do not "
    "fit on a multiprocessor.",
    why="Such a launch fails with `too many resources requested for launch`, at run time and "
    "only for large blocks.",
    example="65 registers: 65 → 72 × 1,024 > 65,536",
    instead="State the block size: `__launch_bounds__(256)`; or set `threads_per_block` of "
    "the kernel in the configuration.",
    check=check,
    unchecked=needs_exact_figures,
)
