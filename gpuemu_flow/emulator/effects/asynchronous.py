"""Asynchronous copies: cp.async and its groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuemu_flow.emulator.effects.bulk import (
    arrival_problem,
    bulk_problem,
    emit_arrival,
    emit_bulk,
)
from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    address_problem,
    constant_of,
    operand_problem,
)
from gpuemu_flow.emulator.effects.effect import Effect
from gpuemu_flow.emulator.ir import Inverted, MemoryOperand, Operand, Register, Step

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter

_HINTS = frozenset({"L2::64B", "L2::128B", "L2::256B"})


def _is_predicate(operand: Operand) -> bool:
    return isinstance(operand, Inverted) or (
        isinstance(operand, Register) and operand.type == "pred"
    )


def _problem(step: Step) -> str:
    words = step.opcode.segments[1:]
    if words[:3] == ("reduce", "async", "bulk"):
        return bulk_problem(step)
    if not words or words[0] != "async":
        return UNKNOWN_FORM
    rest = words[1:]
    if rest[:1] == ("bulk",):
        return bulk_problem(step)
    if rest[:1] == ("mbarrier",):
        return arrival_problem(step)
    if rest in (("commit_group",), ("wait_all",)):
        return "" if not step.operands else UNKNOWN_FORM
    if rest == ("wait_group",):
        count = constant_of(step.operands[0]) if len(step.operands) == 1 else None
        good = count is not None and count >= 0
        return "" if good else UNKNOWN_FORM
    if rest[:1] not in (("ca",), ("cg",)) or "shared" not in {w.split("::")[0] for w in rest}:
        return UNKNOWN_FORM
    if not {w for w in rest[1:] if w.partition("::")[0] not in ("shared", "global")} <= _HINTS:
        return UNKNOWN_FORM
    operands = step.operands
    if not 3 <= len(operands) <= 4 or constant_of(operands[2]) not in (4, 8, 16):
        return UNKNOWN_FORM
    problem = address_problem(operands[0]) or address_problem(operands[1])
    if len(operands) == 4:
        kind = "pred" if _is_predicate(operands[3]) else "u32"
        problem = problem or operand_problem(operands[3], kind)
    return problem


def _emit(emitter: Emitter, step: Step, index: int) -> None:
    rest = step.opcode.segments[2:]
    if rest[0] == "mbarrier":
        emit_arrival(emitter, step, index)
        return
    if "bulk" in rest:
        emit_bulk(emitter, step, index)
        return
    mask = emitter.mask(step)
    if rest == ("commit_group",):
        emitter.do(f"m.commit_copies({mask})")
        return
    if rest == ("wait_all",):
        emitter.do(f"m.wait_copies(0, {mask}, everything=True)")
        return
    operands = step.operands
    if rest == ("wait_group",):
        emitter.do(f"m.wait_copies({constant_of(operands[0])}, {mask}, everything=False)")
        return
    target, source = operands[0], operands[1]
    assert isinstance(target, MemoryOperand) and isinstance(source, MemoryOperand)
    size = constant_of(operands[2])
    taken = "None"
    if len(operands) == 4 and _is_predicate(operands[3]):
        ignored = emitter.read(operands[3], "pred")
        full = emitter.immediate_number(size or 0, "u32")
        none = emitter.immediate_number(0, "u32")
        taken = f"where({ignored}, {none}, {full})"
    elif len(operands) == 4:
        taken = emitter.read(operands[3], "u32")
    where, origin = emitter.address(target), emitter.address(source)
    emitter.do(f"m.start_copy({where}, {origin}, {size}, {taken}, {mask}, {index})")


EFFECTS = {
    "cp": Effect(
        _problem, _emit, "cp.async, cp.async.bulk, cp.async.bulk.tensor, cp.reduce.async.bulk"
    )
}
