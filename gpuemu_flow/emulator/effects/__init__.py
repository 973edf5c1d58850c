"""Instructions that do more than apply a function to each lane: memory, warps, barriers."""

from __future__ import annotations

from gpuemu_flow.emulator.effects import (
    barriers,
    checking,
    copies,
    loads,
    matrices,
    moves,
    stack,
    warps,
)
from gpuemu_flow.emulator.effects.checking import Effect
from gpuemu_flow.lint.ptx.model import Opcode

_MODULES = (moves, loads, barriers, warps, copies, matrices, checking, stack)
_EFFECTS: dict[str, Effect] = {name: e for m in _MODULES for name, e in m.EFFECTS.items()}


def find_effect(opcode: Opcode) -> Effect | None:
    """Return the `Effect` that implements an opcode."""
    if opcode.base == "call":
        return _EFFECTS.get(opcode.text)
    return _EFFECTS.get(opcode.base)


def effect_sections() -> dict[str, str]:
    """Map the base name of each instruction with an `Effect` to its section of the PTX ISA."""
    return {name: _EFFECTS[name].section for name in effect_bases()}


def effect_bases() -> tuple[str, ...]:
    """List the base names of the instructions that an `Effect` implements, sorted."""
    return tuple(sorted(name for name in _EFFECTS if not name.startswith("!")))
