"""Rule 4: double-precision arithmetic in a single-precision kernel."""

from __future__ import annotations

from gpuemu_flow.lint.ptx.opcode import Opcode
from gpuemu_flow.lint.rules.base import Findings, KernelAnalysis, Rule, plural

_ARITHMETIC = frozenset(
    {"add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "rsqrt"}
    | {"min", "max", "neg", "abs", "setp"}
)
_NARROW = frozenset({"f32", "f16", "bf16"})
_WIDE_DATA = frozenset({"f64", "b64"})


def find(analysis: KernelAnalysis) -> Findings:
    """Find conversions to f64 in a kernel that computes in f64, but neither loads nor stores it."""
    arithmetic = analysis.select(*_ARITHMETIC, where=lambda opcode: opcode.type == "f64")
    if not arithmetic:
        return ()
    promotions = analysis.select("cvt", where=_is_promotion)
    if not promotions:
        return ()
    defs, uses = analysis.flow.defs, analysis.flow.uses
    promoted = {register for index in promotions for register in defs[index]}
    wide = set(promoted)
    for index in arithmetic:
        wide.update(r for r in (*defs[index], *uses[index]) if analysis.flow.widths[r] > 1)
    moved = analysis.select(
        "ld", "ldu", "st", "atom", "red", where=lambda opcode: opcode.type in _WIDE_DATA
    )
    if any(not wide.isdisjoint((*defs[index], *uses[index])) for index in moved):
        return ()
    return analysis.group(
        promotions,
        lambda _, count: (
            f"{plural(count, 'value')} widened to f64; the kernel has "
            f"{plural(len(arithmetic), 'f64 operation')} and reads and writes no f64 data"
        ),
    )


def _is_promotion(opcode: Opcode) -> bool:
    types = opcode.types
    return len(types) == 2 and types[0] == "f64" and types[1] in _NARROW


RULE = Rule(
    id="accidental-f64",
    severity="warning",
    what="f64 arithmetic on values that were widened from f32, in a kernel that neither loads nor "
    "stores f64.",
    why="Most GPUs run f64 at 1/32 or 1/64 of the f32 rate. One literal without `f` makes the "
    "whole expression double.",
    example="y[i] = x[i] * 0.5 + 1.0;      // two doubles: cvt.f64.f32, fma.rn.f64, cvt.rn.f32.f64",
    instead="Write the literals as `0.5f`, and call `sqrtf`, `expf`, `fabsf`. Where the wider "
    "arithmetic is meant, say so with an `allow` and the reason.",
    find=find,
)
