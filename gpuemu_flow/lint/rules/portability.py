"""Rule 11: a kernel that does not build or run on an architecture that the policy names."""

from __future__ import annotations

from gpuemu_flow.lint.occupancy import arch_number
from gpuemu_flow.lint.rules.base import (
    Finding,
    Findings,
    KernelPolicy,
    KernelView,
    Rule,
    needs_ptx,
)


def check(view: KernelView, policy: KernelPolicy) -> Findings:
    """Report each architecture of the policy for which a kernel cannot be built, with the reason.

    If the policy names no architecture, a target that excludes later architectures is reported as
    information.
    """
    target = view.metrics.ptx_target
    for arch in policy.archs:
        error = view.assembly.get(arch, "")
        reason = error or target_excludes(target, arch)
        if reason:
            yield Finding(f"does not build for {arch}: {reason}")
    if not policy.archs and target[-1:] in ("a", "f") and arch_number(target) is not None:
        kind = "this architecture" if target.endswith("a") else "this family of architectures"
        yield Finding(f".target {target} runs on {kind} only", severity="info")


def target_excludes(target: str, arch: str) -> str:
    """Return the reason why PTX for `target` cannot run on `arch`; empty if it can.

    PTX for a target without a suffix runs on that architecture and all later ones; for an ``a``
    target, on that architecture only; for an ``f`` target, on that architecture and later ones of
    the same family (``sm_10x``). Source: PTX ISA, ".target".
    """
    built, wanted = arch_number(target), arch_number(arch)
    if built is None or wanted is None:
        return ""
    if target.endswith("a") and wanted != built:
        return f".target {target} runs on sm_{built} only"
    if target.endswith("f") and (wanted < built or wanted // 10 != built // 10):
        return f".target {target} runs on the sm_{built // 10}x family only"
    if wanted < built:
        return f".target {target} is newer"
    return ""


RULE = Rule(
    id="portability",
    severity="error",
    what="The PTX does not assemble for a wanted architecture, or its `.target` (`sm_90a`, "
    "`sm_100f`) excludes it. If no architectures are configured, such targets are reported as "
    "information.",
    why="Architecture-specific PTX has no forward compatibility: the kernel that runs today does "
    "not load on the next GPU.",
    example=".target sm_90a      // wgmma: sm_90 only, neither sm_80 nor sm_100",
    instead="Build one artifact per architecture, or keep a portable kernel beside the tuned one.",
    check=check,
    unchecked=needs_ptx,
)
