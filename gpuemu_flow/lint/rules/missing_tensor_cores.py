"""Rule 10: tensor-core instructions that were expected and are absent."""

from __future__ import annotations

from gpuemu_flow.lint.families import count_sass_families
from gpuemu_flow.lint.rules.base import Finding, Findings, KernelPolicy, KernelView, Rule


def check(view: KernelView, policy: KernelPolicy) -> Findings:
    """Report a kernel without tensor-core instructions, if the policy expects such instructions."""
    if not policy.expect_tensor_cores or unchecked(view, policy):
        return
    in_ptx = view.metrics.families.get("tensor", 0)
    in_sass = count_sass_families(view.metrics.sass_opcodes or {}).get("tensor", 0)
    if not in_ptx and not in_sass:
        yield Finding("no tensor-core instruction, expected by the policy", actual=0)


def unchecked(view: KernelView, policy: KernelPolicy) -> str:
    """Return the reason why the rule cannot judge a kernel; empty if it can."""
    if policy.expect_tensor_cores and not view.has_ptx and view.metrics.sass_opcodes is None:
        return "needs the kernel's PTX, or nvdisasm"
    return ""


RULE = Rule(
    id="missing-tensor-cores",
    severity="error",
    what="With `tensor_cores = true`: the kernel has no `mma`, `wmma.mma`, `wgmma` or "
    "`tcgen05.mma`.",
    why="A matrix kernel that misses the tensor cores runs at a tenth of the speed; a dtype or a "
    "shape that does not fit makes a compiler fall back silently.",
    example="artifact_checks = { tensor_cores = true }   # a float32 dot without tf32",
    instead="Use dtypes and tile shapes that the tensor cores take (tf32, bf16, f16; multiples "
    "of 16).",
    check=check,
    unchecked=unchecked,
)
