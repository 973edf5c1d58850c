"""Rule 1: registers that did not fit and are kept in local memory."""

from __future__ import annotations

from gpuemu_flow.lint.rules.base import (
    Finding,
    Findings,
    KernelPolicy,
    KernelView,
    Rule,
    needs_exact_figures,
)

_WIDEST_SPILL = 16


def check(view: KernelView, policy: KernelPolicy) -> Findings:
    """Yield a violation for each exceeded limit on spill instructions or on spilled bytes.

    Nothing is yielded if the kernel's metrics are estimates, and not figures of the compiler.
    """
    metrics = view.metrics
    if not metrics.is_exact:
        return
    instructions, spilled = metrics.spill_instructions, metrics.spill_bytes
    amount = "an unknown number of" if instructions is None else str(instructions)
    size = "" if spilled is None else f" ({spilled} bytes)"
    if instructions is None and spilled:
        instructions = -(-spilled // _WIDEST_SPILL)
        amount = f"at least {instructions}"
    if instructions is not None and instructions > policy.max_spills:
        yield Finding(
            f"{amount} spill instructions{size}, allowed are {policy.max_spills}",
            actual=instructions,
            limit=policy.max_spills,
            severity=policy.limit_severity("max_spills"),
        )
    elif (
        instructions is not None
        and policy.spills_warn_above is not None
        and instructions > policy.spills_warn_above
    ):
        yield Finding(
            f"{amount} spill instructions{size}, above {policy.spills_warn_above}",
            actual=instructions,
            limit=policy.spills_warn_above,
        )
    if policy.max_spill_bytes is not None and (spilled or 0) > policy.max_spill_bytes:
        yield Finding(
            f"{spilled} bytes of spills, allowed are {policy.max_spill_bytes}",
            actual=spilled,
            limit=policy.max_spill_bytes,
            severity=policy.limit_severity("max_spill_bytes"),
        )


def unchecked(view: KernelView, policy: KernelPolicy) -> str:
    """Return the reason why a kernel's spills are unknown; empty if they are known."""
    reason = needs_exact_figures(view, policy)
    if reason:
        return reason
    if view.metrics.spill_instructions is None and view.metrics.spill_bytes is None:
        return "this cubin records no spills (made by ptxas before 12.6)"
    return ""


RULE = Rule(
    id="real-spills",
    severity="warning",
    what="The kernel holds more values than it has registers for: the compiler stores some in "
    "local memory and loads them back. Counted from the cubin's own record of spill "
    "instructions, or from `ptxas -v`.",
    why="Each spill is a trip through the L1 cache or to device memory in the middle of the "
    "arithmetic. `ld.local` in PTX is no measure of it: spills are made later, by ptxas.",
    example="__global__ void __launch_bounds__(1024, 2) k(...) { float a[64]; /* all live */ }",
    instead="Relax `__launch_bounds__` or `-maxrregcount`, split the kernel, keep fewer values "
    "live at once, or recompute cheap ones. `max_spills = 0` makes any spill an error, a larger "
    "number accepts some.",
    check=check,
    unchecked=unchecked,
)
