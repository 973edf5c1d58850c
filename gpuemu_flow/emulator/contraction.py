"""Multiplications and additions that a compiler may fuse (PTX ISA, "mul", "add", "fma").

If neither has a rounding modifier, ``ptxas`` may turn a ``mul`` and an ``add`` or ``sub`` of its
product into one ``fma``. The emulator cannot know which pairs are fused, so it tries both ways.
"""

from __future__ import annotations

from msgspec import Struct

from gpuemu_flow.artifacts.ptx import Opcode
from gpuemu_flow.emulator.blocks import defined_and_used, split_blocks
from gpuemu_flow.emulator.ir import KernelProgram, Operand, Register, Step
from gpuemu_flow.emulator.registry import ROUNDINGS
from gpuemu_flow.emulator.rewriting import like, new_register, rewritten

_TYPES = frozenset({"f16", "f16x2", "bf16", "bf16x2", "f32", "f64"})
_FLAGS = frozenset({"ftz", "sat"})


class Pair(Struct, frozen=True):
    """A multiplication, and an addition or subtraction of the product.

    Attributes
    ----------
    multiply, add : int
        Numbers of the two steps.
    position : int
        Position of the product among the operands of the addition: 1 or 2.
    """

    multiply: int
    add: int
    position: int


def find_pairs(program: KernelProgram) -> list[Pair]:
    """Find the multiplications that a compiler may fuse with an addition or subtraction.

    The two steps of such a pair are in the same basic block. Between them, no step changes the
    product or its factors.
    """
    blocks = split_blocks(program)
    found = []
    for start, end in zip(blocks.starts, blocks.ends, strict=True):
        products: dict[int, int] = {}
        for index in range(start, end):
            step = program.steps[index]
            if _fusable(step, "add", "sub"):
                found += _pairs_of(program, index, products)
            for register in defined_and_used(step)[0]:
                products = {
                    target: at for target, at in products.items()
                    if target != register and register not in _used(program.steps[at])
                }  # fmt: skip
            if _fusable(step, "mul") and isinstance(step.operands[0], Register):
                target = step.operands[0].number
                if target not in _used(step):
                    products[target] = index
    return found


def _used(step: Step) -> tuple[int, ...]:
    return defined_and_used(step)[1]


def _fusable(step: Step, *bases: str) -> bool:
    words = set(step.opcode.segments[1:])
    return (
        step.opcode.base in bases and step.guard is None and step.opcode.type in _TYPES
        and len(step.operands) == 3 and words <= _FLAGS | {step.opcode.type}
        and not words.intersection(ROUNDINGS)
    )  # fmt: skip


def _pairs_of(program: KernelProgram, index: int, products: dict[int, int]) -> list[Pair]:
    step = program.steps[index]
    for position in (1, 2):
        operand = step.operands[position]
        if not isinstance(operand, Register) or operand.number not in products:
            continue
        at = products[operand.number]
        first, second = program.steps[at].opcode, step.opcode
        same = first.type == second.type and ("ftz" in first.segments) == ("ftz" in second.segments)
        if same and "sat" not in first.segments:
            return [Pair(at, index, position)]
    return []


def fuse(program: KernelProgram, pairs: list[Pair]) -> KernelProgram:
    """Replace the addition of each pair by ``fma``; keep the multiplication for other uses."""
    pieces: dict[int, list[Step]] = {}
    types: list[str] = []
    for pair in pairs:
        step, product = program.steps[pair.add], program.steps[pair.multiply]
        a, b = product.operands[1:]
        c = step.operands[3 - pair.position]
        before: list[Step] = []

        def negated(operand: Operand, step: Step = step, before: list[Step] = before) -> Register:
            target = new_register(program, types, _plain_type(step.opcode.type))
            types.append(target.type)
            opcode = Opcode(f"neg.{step.opcode.type}")
            before.append(like(step, opcode=opcode, operands=(target, operand)))
            return target

        if step.opcode.base == "sub":
            if pair.position == 1:
                c = negated(c)
            else:
                a = negated(a)
        flags = "".join(f".{w}" for w in ("ftz", "sat") if w in step.opcode.segments)
        opcode = Opcode(f"fma.rn{flags}.{step.opcode.type}")
        fused = like(step, opcode=opcode, operands=(step.operands[0], a, b, c))
        pieces[pair.add] = [*before, fused]
    return rewritten(program, pieces, types=types)


def _plain_type(type_name: str) -> str:
    return {"f16x2": "b32", "bf16x2": "b32", "f16": "b16", "bf16": "b16"}.get(type_name, type_name)
