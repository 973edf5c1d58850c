"""Loads and stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    Effect,
    address_problem,
    items_of,
    operand_problem,
    result_problem,
)
from gpuemu_flow.emulator.effects.copies import emit_store, is_asynchronous, store_problem
from gpuemu_flow.emulator.ir import MemoryOperand, Operand, Step, Symbol
from gpuemu_flow.emulator.polling import STRONG
from gpuemu_flow.emulator.types import DTYPES, SIZES

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter

_WORDS = frozenset(
    {
        *STRONG, "weak", "cta", "cluster", "gpu", "sys", "nc", "ca", "cg", "cs", "lu", "cv", "wb",
        "wt", "v2", "v4", "v8", "L2::64B", "L2::128B", "L2::256B", "L1::evict_normal",
        "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate",
        "global", "shared", "shared::cta", "shared::cluster", "local", "param", "const",
        "param::entry", "param::func", "unified", "L2::evict_first", "L2::evict_last",
        "L2::evict_normal",
    }
)  # fmt: skip


def space_of(step: Step, address: MemoryOperand) -> str:
    """Return the state space of an access, with ``global`` for parameters and constants. If a
    generic address names a shared or local variable, the variable's space is returned."""
    space = step.opcode.space or "generic"
    base = address.base
    if isinstance(base, Symbol) and space in ("param", "generic", "const", "global"):
        if base.space == "local":
            return "local"
        if base.space in ("shared", "dynamic"):
            return "shared"
    return {"param": "global", "const": "global"}.get(space, space)


def _access_problem(step: Step, address_at: int, check: Callable[[Operand, str], str]) -> str:
    """Return the reason why a load or store cannot be run, or an empty string. `address_at` is the
    position of the address among the two operands. `check` gives the reason why another operand
    does not fit the type of the access, or an empty string."""
    opcode = step.opcode
    type_name = opcode.type
    words = set(opcode.segments[1:]) - {type_name}
    if type_name not in DTYPES or type_name == "pred" or not words <= _WORDS:
        return UNKNOWN_FORM
    if len(step.operands) != 2:
        return "cache policies and masks are not supported"
    values = items_of(step.operands[1 - address_at])
    if len(values) != opcode.vector:
        return UNKNOWN_FORM
    problem = address_problem(step.operands[address_at])
    return problem or next((p for v in values if (p := check(v, type_name))), "")


def _where(
    emitter: Emitter, step: Step, address: MemoryOperand, index: int
) -> tuple[str, str, str]:
    """Return the state space of an access, and two pieces of the Python code for the access. The
    first piece is the address. The second piece is the last arguments of the call, and the closing
    parenthesis."""
    strong = emitter.is_strong(step, index)
    tail = f"{emitter.mask(step)}, {index}, {strong})"
    return space_of(step, address), emitter.address(address), tail


def _load_problem(step: Step) -> str:
    return _access_problem(step, 1, result_problem)


def _parameter_offset(emitter: Emitter, address: MemoryOperand, size: int) -> int | None:
    """Return the offset in the parameter block that a load reads; None if it reads other memory."""
    base = address.base
    if not isinstance(base, Symbol) or base.space != "param":
        return None
    offset = base.offset + base.displacement + address.displacement
    return offset if 0 <= offset <= emitter.parameter_bytes - size else None


def _emit_load(emitter: Emitter, step: Step, index: int) -> None:
    opcode, address = step.opcode, step.operands[1]
    assert isinstance(address, MemoryOperand)
    targets = items_of(step.operands[0])
    type_name = opcode.type
    width, dtype = SIZES[type_name], DTYPES[type_name]
    offset = _parameter_offset(emitter, address, width * len(targets))
    if offset is not None:
        for k, target in enumerate(targets):
            value = f"m.parameter({offset + k * width}, {dtype!r})"
            emitter.write(target, value, type_name, step)
        return
    space, where, tail = _where(emitter, step, address, index)
    loaded = emitter.temporary(f"m.load_{space}({where}, {width}, {len(targets)}, {tail}")
    for k, target in enumerate(targets):
        emitter.write(target, f"{loaded}[{k}].view({dtype!r})", type_name, step)


def _store_problem(step: Step) -> str:
    if is_asynchronous(step):
        return store_problem(step)
    return _access_problem(step, 0, operand_problem)


def _emit_store(emitter: Emitter, step: Step, index: int) -> None:
    if is_asynchronous(step):
        emit_store(emitter, step, index)
        return
    opcode, address = step.opcode, step.operands[0]
    assert isinstance(address, MemoryOperand)
    width = SIZES[opcode.type]
    values = ", ".join(emitter.read(v, f"b{8 * width}") for v in items_of(step.operands[1]))
    space, where, tail = _where(emitter, step, address, index)
    emitter.do(f"m.store_{space}({where}, ({values},), {width}, {tail}")


def _always(step: Step) -> str:
    return ""


def _nothing(emitter: Emitter, step: Step, index: int) -> None:
    """Write no code, for a step that changes no value, such as ``prefetch``."""


EFFECTS: dict[str, Effect] = {
    "ld": Effect(_load_problem, _emit_load, "ld"),
    "ldu": Effect(_load_problem, _emit_load, "ldu"),
    "st": Effect(_store_problem, _emit_store, "st"),
    **{
        name: Effect(_always, _nothing, name)
        for name in ("prefetch", "prefetchu", "applypriority", "discard", "nanosleep", "pmevent")
    },
}
