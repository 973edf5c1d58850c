"""Rule 2: a stack in local memory, such as for an array that is indexed at run time."""

from __future__ import annotations

from gpuemu_flow.lint.rules.base import (
    Finding,
    Findings,
    KernelAnalysis,
    KernelPolicy,
    KernelView,
    Rule,
    needs_exact_figures,
    plural,
)


def find(analysis: KernelAnalysis) -> Findings:
    """Find the instructions that access local memory."""
    accesses = analysis.select("ld", "st", where=lambda opcode: opcode.space == "local")
    return analysis.group(
        accesses, lambda _, count: f"local memory is accessed {plural(count, 'time')}"
    )


def check(view: KernelView, policy: KernelPolicy) -> Findings:
    """Compare a kernel's stack with its limits, and report recursion.

    If the size of the stack is unknown, the size of the local variables in the PTX is compared
    instead, and a violation has the severity ``info``.
    """
    metrics, limit = view.metrics, policy.max_local_memory_bytes
    found = view.findings.get("local-memory", ())
    place = found[0].place if found else None
    if view.recursive:
        yield Finding("recursion: the stack has no bound known at compile time")
    if not metrics.is_exact:
        if (metrics.local_bytes or 0) > limit:
            yield Finding(
                f"{metrics.local_bytes} bytes of local variables in PTX, of which the compiler "
                "may keep some in registers",
                place=place,
                actual=metrics.local_bytes,
                limit=limit,
                severity="info",
            )
        return
    stack = metrics.stack_bytes or 0
    if stack > limit:
        yield Finding(
            f"{stack} bytes of stack per thread, allowed are {limit}{_spill_share(view)}",
            place=place,
            actual=stack,
            limit=limit,
            severity=policy.limit_severity("max_local_memory_bytes"),
        )
    elif policy.local_memory_warn_above is not None and stack > policy.local_memory_warn_above:
        yield Finding(
            f"{stack} bytes of stack per thread, above {policy.local_memory_warn_above}",
            place=place,
            actual=stack,
            limit=policy.local_memory_warn_above,
        )


def _spill_share(view: KernelView) -> str:
    return "; spilled registers are among them" if view.metrics.spill_bytes else ""


RULE = Rule(
    id="local-memory",
    severity="warning",
    what="The kernel has a stack in local memory: an array indexed at run time, arguments of "
    "printf, a function that is not inlined, or spilled registers.",
    why="Local memory is device memory with a per-thread layout. An array that is indexed with "
    "a run-time value cannot live in registers, however small it is.",
    example="float a[32]; ... y = a[threadIdx.x * n & 31];   // dynamic index: 128 bytes of stack",
    instead="Unroll the loops so that all indices are constants, use shared memory for a real "
    "table, or allow the bytes with `max_local_memory_bytes`.",
    check=check,
    find=find,
    unchecked=needs_exact_figures,
)
