"""Atomics: atom and red."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuemu_flow.emulator.atomics import AtomicForm, combiner
from gpuemu_flow.emulator.effects.bulk import emit_store, is_asynchronous, store_problem
from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    address_problem,
    items_of,
    operand_problem,
    result_problem,
)
from gpuemu_flow.emulator.effects.effect import Effect
from gpuemu_flow.emulator.effects.loads import space_of
from gpuemu_flow.emulator.ir import MemoryOperand, Operand, Step
from gpuemu_flow.emulator.polling import RELEASES
from gpuemu_flow.emulator.types import SIZES

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter

OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
_WORDS = frozenset(
    {
        *OPERATIONS, "relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys",
        "global", "shared", "shared::cta", "shared::cluster", "noftz",
    }
)  # fmt: skip
_IN_VECTORS = frozenset({"f32", "f16", "bf16", "f16x2", "bf16x2"})


def _parts(step: Step) -> tuple[str, str, tuple[Operand, ...]]:
    """Return an atomic's operation and type, and its operands from the address on."""
    opcode = step.opcode
    operation = next((w for w in opcode.segments[1:] if w in OPERATIONS), "")
    operands = step.operands[1:] if opcode.base == "atom" else step.operands
    return operation, opcode.type, operands


def _vector_problem(step: Step) -> str:
    """Return the reason why an atomic on a vector cannot be run, or an empty string.

    An example of such an atomic is ``atom.global.add.v4.f32``.
    """
    operation, type_name, operands = _parts(step)
    count, words = step.opcode.vector, set(step.opcode.segments[1:])
    most = 16 // SIZES.get(type_name, 16)
    if (
        operation != "add"
        or type_name not in _IN_VECTORS
        or words & {"v2", "v4", "v8"} - {f"v{count}"}
        or count > most
        or step.opcode.space not in ("global", "")
    ):
        return UNKNOWN_FORM
    if len(operands) != 2:
        return f"it has {len(step.operands)} operands"
    lists = [operands[1]] if step.opcode.base == "red" else [operands[1], step.operands[0]]
    if any(len(items_of(o)) != count for o in lists):
        return f"its vectors do not have {count} items"
    problems = [address_problem(operands[0])]
    problems += [operand_problem(o, type_name) for o in items_of(operands[1])]
    if step.opcode.base == "atom":
        problems += [result_problem(o, type_name) for o in items_of(step.operands[0])]
    return next((p for p in problems if p), "")


def _emit_vector(emitter: Emitter, step: Step, index: int) -> None:
    operation, type_name, operands = _parts(step)
    address, size = operands[0], SIZES[type_name]
    assert isinstance(address, MemoryOperand)
    form = AtomicForm(operation, type_name, bool(RELEASES.intersection(step.opcode.segments)))
    bound = emitter.function(form, f"atomic {form}")
    where, mask = emitter.temporary(emitter.address(address)), emitter.mask(step)
    given = [emitter.read(item, type_name) for item in items_of(operands[1])]
    emitter.do(f"m.check_vector({where}, {size * len(given)}, {mask}, {index})")
    found = []
    for k, value in enumerate(given):
        added = emitter.constant(np.array([[size * k]], np.uint64), ("added", size * k, 8))
        found.append(
            emitter.temporary(
                f"m.atomic({space_of(step, address)!r}, {bound}, {where} + {added}, ({value},), "
                f"{mask}, {index})"
            )
        )
    if step.opcode.base == "atom":
        for item, value in zip(items_of(step.operands[0]), found, strict=True):
            emitter.write(item, value, type_name, step)


def _problem(step: Step) -> str:
    if is_asynchronous(step):
        return store_problem(step)
    operation, type_name, operands = _parts(step)
    words = set(step.opcode.segments[1:]) - {type_name}
    if step.opcode.vector > 1 and operation and words - {f"v{step.opcode.vector}"} <= _WORDS:
        return _vector_problem(step)
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
    if step.opcode.vector > 1:
        _emit_vector(emitter, step, index)
        return
    operation, type_name, operands = _parts(step)
    address = operands[0]
    assert isinstance(address, MemoryOperand)
    values = ", ".join(emitter.read(o, type_name) for o in operands[1:])
    form = AtomicForm(operation, type_name, bool(RELEASES.intersection(step.opcode.segments)))
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
