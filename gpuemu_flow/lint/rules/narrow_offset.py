"""Rule 26: an offset that is computed with 32 bits, and the size at which it overflows."""

from __future__ import annotations

from gpuemu_flow.lint.ptx.opcode import split_operands
from gpuemu_flow.lint.rules.base import Findings, KernelAnalysis, Rule, plural

_PASSES = frozenset({"add", "sub", "mov", "shl", "mad", "mul", "cvt", "cvta", "selp", "or"})
_ACCESSES = frozenset({"ld", "st", "atom", "red", "ldu", "cp"})
_WIDENS = ("mul.wide", "mad.wide", "cvt.s64.s32", "cvt.u64.u32")


def find(analysis: KernelAnalysis) -> Findings:
    """Report 32-bit products of values of the launch that reach a 64-bit address."""
    by_name: dict[str, list[int]] = {}
    steps = analysis.body.instructions
    for index, step in enumerate(steps):
        for name in split_operands(step.text)[:1]:
            by_name.setdefault(name.strip(), []).append(index)

    def behind(names: list[str]) -> set[int]:
        """Return the arithmetic that the values of registers come from, as step numbers."""
        found: set[int] = set()
        pending = list(names)
        while pending:
            for index in by_name.get(pending.pop(), ()):
                if index not in found and steps[index].opcode.base in _PASSES:
                    found.add(index)
                    pending += [o.strip() for o in steps[index].operands[1:]]
        return found

    addresses = {
        operand.strip("[] \t").partition("+")[0]
        for step in steps
        if step.opcode.base in _ACCESSES and step.opcode.space not in ("shared", "param", "local")
        for operand in step.operands
        if operand.lstrip().startswith("[")
    }
    widened = [
        steps[n].operands[1].strip()
        for n in sorted(behind(sorted(addresses)))
        if steps[n].opcode.text.startswith(_WIDENS)
    ]
    products = [
        n
        for n in sorted(behind(widened))
        if _is_product(steps[n].opcode.segments) and not _has_constant(analysis, n)
    ]

    def describe(first: int, count: int) -> str:
        limit = 1 << (31 if steps[first].opcode.type == "s32" else 32)
        return (
            f"{plural(count, 'offset')} by a 32-bit product ({steps[first].opcode.text}): wraps "
            f"around where it reaches {limit:,} elements"
        )

    yield from analysis.group(products, describe)


def _is_product(words: tuple[str, ...]) -> bool:
    return words[0] in ("mul", "mad") and "lo" in words and words[-1] in ("s32", "u32")


def _has_constant(analysis: KernelAnalysis, index: int) -> bool:
    """Tell whether a factor is a number or a special register, as in a thread's own index."""
    step = analysis.body.instructions[index]
    factors = [operand.strip() for operand in step.operands[1:3]]
    made = {
        split_operands(s.text)[0].strip(): split_operands(s.text)[1].strip()
        for s in analysis.body.instructions
        if s.opcode.base == "mov"
    }
    special = ("%ntid", "%nctaid")
    return any(f.isdigit() or made.get(f, f).startswith(special) for f in factors)


RULE = Rule(
    id="narrow-offset",
    severity="info",
    what="A product of two values of 32 bits, such as `row * stride`, that becomes part of an "
    "address after it was computed with 32 bits (`mul.lo.s32`, then `mul.wide.s32`).",
    why="From 2,147,483,648 elements on the product wraps around, and the kernel reads and writes "
    "elsewhere. No case that fits into a test shows that.",
    example="int i = row * stride + col;      // mul.lo.s32\nout[i] = x[i];",
    instead="Widen a factor first: `(size_t)row * stride`; in Triton `row.to(tl.int64) * stride`.",
    find=find,
)
