"""Rule 3: registers per thread, and the occupancy that they permit."""

from __future__ import annotations

from gpuemu_flow.lint.rules.base import Finding, Findings, KernelPolicy, KernelView, Rule

ESTIMATE_TOLERANCE = 1.3
"""An estimate fails a kernel only above this multiple of the limit; its mean error is 17 %."""


def check(view: KernelView, policy: KernelPolicy) -> Findings:
    """Compare a kernel's registers and occupancy with the policy's limits."""
    yield from _registers(view, policy)
    reached = view.metrics.occupancy
    if policy.min_occupancy is not None and reached is not None:
        if reached.fraction >= policy.min_occupancy:
            return
        assumed = " (block size assumed)" if reached.assumed_threads else ""
        certain = view.metrics.is_exact and not reached.assumed_threads
        yield Finding(
            f"occupancy {reached.fraction:.0%} with {reached.threads} threads per block{assumed}, "
            f"limited by {' and '.join(reached.limited_by)}; wanted is {policy.min_occupancy:.0%}",
            actual=reached.fraction,
            limit=policy.min_occupancy,
            severity=policy.limit_severity("min_occupancy") if certain else "warning",
        )


def _registers(view: KernelView, policy: KernelPolicy) -> Findings:
    registers, limit = view.metrics.registers, policy.max_registers
    if registers is None:
        return
    exact = view.metrics.is_exact
    word = "registers" if exact else "registers (an estimate)"
    if registers > limit:
        certain = exact or registers > ESTIMATE_TOLERANCE * limit
        severity = policy.limit_severity("max_registers") if certain else "warning"
        yield Finding(
            f"{registers} {word} per thread, allowed are {limit}",
            actual=registers,
            limit=limit,
            severity=severity,
        )
    elif policy.registers_warn_above is not None and registers > policy.registers_warn_above:
        yield Finding(
            f"{registers} {word} per thread, above {policy.registers_warn_above}",
            actual=registers,
            limit=policy.registers_warn_above,
        )


def unchecked(view: KernelView, policy: KernelPolicy) -> str:
    """Return the reason why the rule cannot judge the registers; empty if it can."""
    if view.metrics.registers is None:
        return "no figure: needs a cubin or the output of ptxas -v"
    return ""


RULE = Rule(
    id="register-limit",
    severity="warning",
    what="Registers per thread above `max_registers`, or occupancy below `min_occupancy`. Exact "
    "from the cubin or `ptxas -v`; from PTX alone an estimate, which warns, and fails only "
    "above 1.3 times the limit. Declared virtual registers are never used.",
    why="A multiprocessor has 65,536 registers. What each thread takes decides how many blocks "
    "are resident, and so how much memory latency is hidden.",
    example="artifact_checks = { max_registers = 64 }   # a kernel with 72 registers: 28 warps, "
    "not 32",
    instead="Shorten the lives of values, lower the unrolling, use `__launch_bounds__`, or raise "
    "the limit when fewer and larger blocks are what the kernel wants.",
    check=check,
    unchecked=unchecked,
)
