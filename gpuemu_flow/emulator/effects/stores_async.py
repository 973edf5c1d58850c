"""Stores and reductions that arrive later in a cluster's shared memory: st.async, red.async."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuemu_flow.emulator.bulk import reduction
from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    address_problem,
    items_of,
    operand_problem,
)
from gpuemu_flow.emulator.effects.tensors import REDUCTIONS
from gpuemu_flow.emulator.ir import MemoryOperand, Step
from gpuemu_flow.emulator.types import SIZES

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter

_ARRIVES = "mbarrier::complete_tx::bytes"
_WORDS = frozenset({"async", "weak", "relaxed", "cluster", "shared::cluster", "v2", "v4", _ARRIVES})


def is_asynchronous(step: Step) -> bool:
    """Tell whether a store or reduction is ``st.async`` or ``red.async``."""
    return step.opcode.segments[1:2] == ("async",)


def store_problem(step: Step) -> str:
    """Return the reason why ``st.async`` or ``red.async`` cannot be run, or an empty string."""
    opcode, operands = step.opcode, step.operands
    words = set(opcode.segments[1:]) - {opcode.type}
    operation = words & REDUCTIONS
    if not words - operation <= _WORDS or not {"shared::cluster", _ARRIVES} <= words:
        return UNKNOWN_FORM
    if len(operation) != (opcode.base == "red") or SIZES.get(opcode.type) not in (4, 8):
        return UNKNOWN_FORM
    if operation and reduction(next(iter(operation)), opcode.type) is None:
        return UNKNOWN_FORM
    if len(operands) != 3 or len(items_of(operands[1])) != opcode.vector:
        return f"it has {len(operands)} operands"
    problems = (operand_problem(item, opcode.type) for item in items_of(operands[1]))
    problem = address_problem(operands[0]) or address_problem(operands[2])
    return problem or next((p for p in problems if p), "")


def emit_store(emitter: Emitter, step: Step, index: int) -> None:
    """Write the code of an ``st.async`` or ``red.async``."""
    where, given, there = step.operands
    assert isinstance(where, MemoryOperand) and isinstance(there, MemoryOperand)
    kind, combine = step.opcode.type, "None"
    values = "".join(f"{emitter.read(item, kind)}, " for item in items_of(given))
    operation = next((w for w in step.opcode.segments if w in REDUCTIONS), "")
    if operation:
        form = reduction(operation, kind)
        combine = emitter.function(form, f"bulk {form}")
    emitter.do(
        f"m.start_store({emitter.address(where)}, ({values}), {emitter.address(there)}, "
        f"{combine}, {emitter.mask(step)}, {index})"
    )
