"""Rule 25: a constant that the kernel reads and that nothing gives a content."""

from __future__ import annotations

import re

from gpuemu_flow.lint.ptx import Function
from gpuemu_flow.lint.rules.base import Finding, Findings, KernelAnalysis, Rule


def find(analysis: KernelAnalysis) -> Findings:
    """Report constants without an initial value."""
    for name in unset_constants(analysis.function):
        yield Finding(
            f"reads the constant {name}, which has no initial value: unless the host sets it, it "
            "holds zeros",
            analysis.kernel_place,
        )


def unset_constants(function: Function) -> list[str]:
    """Return the module's constants without an initial value that a kernel's code names."""
    text = function.module.source.text
    unset = [
        v.name
        for v in function.module.variables
        if v.space == "const" and not v.external
        and "=" not in text[v.offset : text.find(";", v.offset)]
    ]  # fmt: skip
    if not unset:
        return []
    body = text[function.body_start : function.body_end]
    named = {found[0] for found in re.finditer(r"[A-Za-z_$][\w$]*", body)}
    return [name for name in unset if name in named]


RULE = Rule(
    id="unset-constant",
    severity="info",
    what="A `__constant__` variable without an initial value, which the kernel reads.",
    why="Its content comes from the host, by `cudaMemcpyToSymbol`. Where no host code runs, as in "
    '`emulate` and in an op of `kind = "cuda"`, it holds zeros.',
    example="__constant__ float w[4];\n__global__ void k(float *y) { y[threadIdx.x] *= w[0]; }",
    instead='Give it a content: `symbols = { w = "weights" }` in the op, `--symbol w=f32[4]:ones` '
    "for `emulate`.",
    find=find,
)
