"""Addresses in the shared memory of other blocks of a cluster: mapa, getctarank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuemu_flow.emulator.effects.checking import UNKNOWN_FORM, operands_problem
from gpuemu_flow.emulator.effects.effect import Effect
from gpuemu_flow.emulator.ir import Operand, Step

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter


def _is_generic(step: Step) -> bool:
    return not step.opcode.space


def _words_problem(step: Step) -> str:
    words = step.opcode.segments[1:]
    known = words in (("u32",), ("u64",), ("shared::cluster", "u32"), ("shared::cluster", "u64"))
    if not known or (_is_generic(step) and step.opcode.type != "u64"):
        return UNKNOWN_FORM
    return ""


def _map_problem(step: Step) -> str:
    type_name = step.opcode.type
    return _words_problem(step) or operands_problem(step, (type_name, "u32"), type_name)


def _rank_problem(step: Step) -> str:
    return _words_problem(step) or operands_problem(step, (step.opcode.type,), "u32")


def _wide(emitter: Emitter, operand: Operand, type_name: str) -> str:
    value = emitter.read(operand, type_name)
    return value if type_name == "u64" else emitter.temporary(f"{value}.astype('u8')")


def _emit_map(emitter: Emitter, step: Step, index: int) -> None:
    type_name = step.opcode.type
    where = _wide(emitter, step.operands[1], type_name)
    rank = emitter.read(step.operands[2], "u32")
    value = f"m.map_shared({_is_generic(step)}, {where}, {rank}, {emitter.mask(step)}, {index})"
    if type_name == "u32":
        value = f"{value}.astype('u4')"
    emitter.write(step.operands[0], value, type_name, step)


def _emit_rank(emitter: Emitter, step: Step, index: int) -> None:
    where = _wide(emitter, step.operands[1], step.opcode.type)
    value = f"m.rank_of_shared({_is_generic(step)}, {where})"
    emitter.write(step.operands[0], value, "u32", step)


EFFECTS = {
    "mapa": Effect(_map_problem, _emit_map, "mapa"),
    "getctarank": Effect(_rank_problem, _emit_rank, "getctarank"),
}
