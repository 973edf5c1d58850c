"""Extended-precision arithmetic: instructions that read or write a thread's carry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuemu_flow.emulator.effects.checking import UNKNOWN_FORM, operands_problem
from gpuemu_flow.emulator.effects.effect import Effect
from gpuemu_flow.emulator.ir import Step
from gpuemu_flow.emulator.semantics.integers import multiply_high
from gpuemu_flow.emulator.types import Array

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter

_TYPES = frozenset({"u32", "s32", "b32", "u64", "s64", "b64"})


def _operands(step: Step) -> int:
    return 3 if step.opcode.base in ("mad", "madc") else 2


def _problem(step: Step) -> str:
    words = set(step.opcode.segments[1:])
    type_name = step.opcode.type
    known = {"cc", "lo", "hi", type_name}
    chained = step.opcode.base.endswith("c") or "cc" in words
    if not chained or type_name not in _TYPES or not words <= known:
        return UNKNOWN_FORM
    if step.guard is not None:
        return "a carry under a predicate is not supported"
    if _operands(step) == 3 and not words & {"lo", "hi"}:
        return UNKNOWN_FORM
    return operands_problem(step, (type_name,) * _operands(step), type_name)


def _emit(emitter: Emitter, step: Step, index: int) -> None:
    opcode = step.opcode
    type_name = opcode.type
    wide = type_name.endswith("64")
    signed_type = ("s" if type_name[0] == "s" else "u") + type_name[1:]
    values = [emitter.read(o, signed_type) for o in step.operands[1:]]
    code = "u8" if wide else "u4"
    if _operands(step) == 3:
        if "hi" in opcode.segments:
            high = emitter.function(multiply_high, "multiply high")
            product = emitter.temporary(f"{high}({values[0]}, {values[1]})")
        else:
            product = emitter.temporary(f"{values[0]} * {values[1]}")
        values = [product, values[2]]
    left, right = (f"{v}.view({code!r})" for v in values)
    subtracts = opcode.base.startswith("sub")
    function = emitter.function(_subtract if subtracts else _add, f"carry {subtracts}")
    taken = "m.carry" if opcode.base.endswith("c") else "None"
    found = emitter.temporary(f"{function}({left}, {right}, {taken})")
    emitter.write(step.operands[0], f"{found}[0]", f"b{64 if wide else 32}", step)
    if "cc" in opcode.segments:
        emitter.do(f"m.carry = {found}[1]")


def _add(a: Array, b: Array, carry: Array | None) -> tuple[Array, Array]:
    total = a + b
    out = total < a
    if carry is not None:
        more = total + carry.astype(total.dtype)
        out = out | (more < total)
        total = more
    return total, out


def _subtract(a: Array, b: Array, borrow: Array | None) -> tuple[Array, Array]:
    rest = a - b
    out = a < b
    if borrow is not None:
        less = rest - borrow.astype(rest.dtype)
        out = out | (rest < borrow.astype(rest.dtype))
        rest = less
    return rest, out


_EFFECT = Effect(_problem, _emit, "Extended-Precision Integer Arithmetic Instructions")

EFFECTS = dict.fromkeys(("add", "addc", "sub", "subc", "mad", "madc"), _EFFECT)
