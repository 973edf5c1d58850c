"""Loads and stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    address_problem,
    items_of,
    operand_problem,
    result_problem,
)
from gpuemu_flow.emulator.effects.effect import Effect
from gpuemu_flow.emulator.ir import Memory, Register, Step, Symbol
from gpuemu_flow.emulator.types import DTYPES, SIZES

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter

STRONG = frozenset({"volatile", "relaxed", "acquire", "release", "mmio"})

_WORDS = frozenset(
    {
        *STRONG, "weak", "cta", "cluster", "gpu", "sys", "nc", "ca", "cg", "cs", "lu", "cv", "wb",
        "wt", "v2", "v4", "v8", "L2::64B", "L2::128B", "L2::256B", "L1::evict_normal",
        "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate",
        "global", "shared", "shared::cta", "local", "param", "const", "param::entry",
        "param::func", "unified", "L2::evict_first", "L2::evict_last", "L2::evict_normal",
    }
)  # fmt: skip


def space_of(step: Step, address: Memory) -> str:
    """Choose which space's functions an access uses."""
    space = step.opcode.space or "generic"
    base = address.base
    if isinstance(base, Symbol) and space in ("param", "generic", "const", "global"):
        if base.space == "local":
            return "local"
        if base.space in ("shared", "dynamic"):
            return "shared"
    return {"param": "global", "const": "global"}.get(space, space)


def _access_problem(step: Step, address_at: int) -> str:
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
    return address_problem(step.operands[address_at])


def _load_problem(step: Step) -> str:
    problem = _access_problem(step, 1)
    if problem:
        return problem
    problems = [result_problem(v, step.opcode.type) for v in items_of(step.operands[0])]
    return next((p for p in problems if p), "")


def _emit_load(emitter: Emitter, step: Step, index: int) -> None:
    opcode, address = step.opcode, step.operands[1]
    assert isinstance(address, Memory)
    targets = items_of(step.operands[0])
    type_name = opcode.type
    width, dtype = SIZES[type_name], DTYPES[type_name]
    base = address.base
    if isinstance(base, Symbol) and base.space == "param":
        offset = base.offset + base.displacement + address.displacement
        for k, target in enumerate(targets):
            value = f"m.parameter({offset + k * width}, {dtype!r})"
            emitter.write(target, value, type_name, step)
        return
    strong = bool(STRONG.intersection(opcode.segments))
    space = space_of(step, address)
    where = emitter.address(address)
    loaded = emitter.temporary(
        f"m.load_{space}({where}, {width}, {len(targets)}, {emitter.mask(step)}, {index}, {strong})"
    )
    for k, target in enumerate(targets):
        emitter.write(target, f"{loaded}[{k}].view({dtype!r})", type_name, step)


def _store_problem(step: Step) -> str:
    problem = _access_problem(step, 0)
    if problem:
        return problem
    problems = [operand_problem(v, step.opcode.type) for v in items_of(step.operands[1])]
    return next((p for p in problems if p), "")


def _emit_store(emitter: Emitter, step: Step, index: int) -> None:
    opcode, address = step.opcode, step.operands[0]
    assert isinstance(address, Memory)
    width = SIZES[opcode.type]
    values = ", ".join(emitter.read(v, f"b{8 * width}") for v in items_of(step.operands[1]))
    strong = bool(STRONG.intersection(opcode.segments))
    space = space_of(step, address)
    where = emitter.address(address)
    emitter.do(
        f"m.store_{space}({where}, ({values},), {width}, {emitter.mask(step)}, {index}, {strong})"
    )


def _prefetch_problem(step: Step) -> str:
    return ""


def _nothing(emitter: Emitter, step: Step, index: int) -> None:
    """Write nothing: the instruction changes no value."""


EFFECTS = {
    "ld": Effect(_load_problem, _emit_load, "ld"),
    "ldu": Effect(_load_problem, _emit_load, "ldu"),
    "st": Effect(_store_problem, _emit_store, "st"),
    "prefetch": Effect(_prefetch_problem, _nothing, "prefetch, prefetchu"),
    "prefetchu": Effect(_prefetch_problem, _nothing, "prefetch, prefetchu"),
    "applypriority": Effect(_prefetch_problem, _nothing, "applypriority"),
    "nanosleep": Effect(_prefetch_problem, _nothing, "nanosleep"),
    "pmevent": Effect(_prefetch_problem, _nothing, "pmevent"),
}

__all__ = ["EFFECTS", "STRONG", "Register", "space_of"]
