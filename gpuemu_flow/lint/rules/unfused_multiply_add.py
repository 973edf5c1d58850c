"""Rule 17: a multiplication and an addition that could be one fma."""

from __future__ import annotations

from collections import Counter

from gpuemu_flow.lint.ptx.opcode import Opcode
from gpuemu_flow.lint.rules.base import Findings, KernelAnalysis, Rule, plural

_FLOATS = frozenset({"f32", "f64", "f16", "f16x2", "bf16", "bf16x2", "f32x2"})


def find(analysis: KernelAnalysis) -> Findings:
    """Find ``mul.rn`` whose only use is in an ``add.rn`` or ``sub.rn`` of the same type."""
    products = analysis.select("mul", where=_is_rounded)
    if not products:
        return ()
    sums = analysis.select("add", "sub", where=_is_rounded)
    if not sums:
        return ()
    defs, uses = analysis.flow.defs, analysis.flow.uses
    instructions = analysis.body.instructions
    product_type = {
        register: instructions[index].opcode.type for index in products for register in defs[index]
    }
    times_used = Counter(register for read in uses for register in read if register in product_type)
    unfused = [
        index
        for index in sums
        if any(
            times_used[register] == 1
            and product_type.get(register) == instructions[index].opcode.type
            for register in uses[index]
        )
    ]
    return analysis.group(
        unfused, lambda _, count: f"{plural(count, 'addition')} of a product that is rounded first"
    )


def _is_rounded(opcode: Opcode) -> bool:
    return "rn" in opcode.segments and opcode.type in _FLOATS


RULE = Rule(
    id="unfused-multiply-add",
    severity="info",
    what="`mul.rn` followed by `add.rn` or `sub.rn` on its result, which nothing else uses. The "
    "explicit `.rn` forbids ptxas to fuse them.",
    why="One fma does both in one instruction and rounds once instead of twice.",
    example="nvcc -fmad=false, or __fadd_rn(__fmul_rn(a, b), c)",
    instead="Compile with the default `-fmad=true` or write `fmaf(a, b, c)`. Keep it where results "
    "must equal a reference that rounds twice.",
    find=find,
)
