"""Rule 19: shared memory that is declared and never used."""

from __future__ import annotations

from gpuemu_flow.lint.kernel import PtxLocation
from gpuemu_flow.lint.rules.base import Finding, Findings, KernelAnalysis, Rule


def find(analysis: KernelAnalysis) -> Findings:
    """Find ``.shared`` variables that a kernel's body declares and no instruction names."""
    source = analysis.function.module.source
    for variable in analysis.body.variables:
        if variable.space != "shared" or variable.external or not variable.size_bytes:
            continue
        if not analysis.flow.mentions(variable.name):
            yield Finding(
                f"shared variable {variable.name} ({variable.size_bytes} bytes) is never used",
                PtxLocation(source.line_of(variable.offset)),
                actual=1,
            )


RULE = Rule(
    id="unused-shared-memory",
    severity="warning",
    what="A static `.shared` variable that the kernel never uses.",
    why="It takes shared memory from every resident block and lowers occupancy for nothing. "
    "Often the sign of a stage that was taken out, or of a wrong buffer being used.",
    example="__shared__ float partial[1024];      // left over, only `tile` is used",
    instead="Remove the variable.",
    find=find,
)
