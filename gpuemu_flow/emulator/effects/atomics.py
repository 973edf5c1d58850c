"""Atomics: atom and red."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuemu_flow.emulator.atomics import AtomicForm, combiner
from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    address_problem,
    operand_problem,
    result_problem,
)
from gpuemu_flow.emulator.effects.effect import Effect
from gpuemu_flow.emulator.effects.loads import space_of
from gpuemu_flow.emulator.effects.stores_async import emit_store, is_asynchronous, store_problem
from gpuemu_flow.emulator.ir import Memory, Operand, Step

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter

OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
_WORDS = frozenset(
    {
        *OPERATIONS, "relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys",
        "global", "shared", "shared::cta", "shared::cluster", "noftz",
    }
)  # fmt: skip
_RELEASES = frozenset({"release", "acq_rel"})


def _parts(step: Step) -> tuple[str, str, tuple[Operand, ...]]:
    """Read the operation, the type and the operands from the address on."""
    opcode = step.opcode
    operation = next((w for w in opcode.segments[1:] if w in OPERATIONS), "")
    operands = step.operands[1:] if opcode.base == "atom" else step.operands
    return operation, opcode.type, operands


def _problem(step: Step) -> str:
    if is_asynchronous(step):
        return store_problem(step)
    operation, type_name, operands = _parts(step)
    words = set(step.opcode.segments[1:]) - {type_name}
    if not operation or not words <= _WORDS or combiner(operation, type_name) is None:
        return UNKNOWN_FORM
    if len(operands) != (3 if operation == "cas" else 2):
        return f"it has {len(step.operands)} operands"
    problem = address_problem(operands[0])
    if step.opcode.base == "atom":
        problem = problem or result_problem(step.operands[0], type_name)
    problems = (operand_problem(o, type_name) for o in operands[1:])
    return problem or next((p for p in problems if p), "")


def _emit(emitter: Emitter, step: Step, index: int) -> None:
    if is_asynchronous(step):
        emit_store(emitter, step, index)
        return
    operation, type_name, operands = _parts(step)
    address = operands[0]
    assert isinstance(address, Memory)
    values = ", ".join(emitter.read(o, type_name) for o in operands[1:])
    form = AtomicForm(operation, type_name, bool(_RELEASES.intersection(step.opcode.segments)))
    call = (
        f"m.atomic({space_of(step, address)!r}, {emitter.function(form, f'atomic {form}')}, "
        f"{emitter.address(address)}, ({values},), {emitter.mask(step)}, {index})"
    )
    if step.opcode.base == "atom":
        emitter.write(step.operands[0], call, type_name, step)
    else:
        emitter.do(call)


EFFECTS = {
    "atom": Effect(_problem, _emit, "atom"),
    "red": Effect(_problem, _emit, "red"),
}
