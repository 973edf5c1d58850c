"""Instructions that do more than apply a function to each lane: memory, warps, barriers."""

from __future__ import annotations

from gpuemu_flow.artifacts.ptx import Opcode
from gpuemu_flow.emulator.effects import (
    asynchronous,
    atomics,
    barriers,
    loads,
    matrices,
    moves,
    stack,
    tensors,
    warps,
)
from gpuemu_flow.emulator.effects import (
    barriers as mbarriers,
)
from gpuemu_flow.emulator.effects import (
    checking as perturb,
)
from gpuemu_flow.emulator.effects import (
    checking as watch,
)
from gpuemu_flow.emulator.effects import (
    matrices as wgmma,
)
from gpuemu_flow.emulator.effects import (
    matrices as wmma,
)
from gpuemu_flow.emulator.effects import (
    moves as carries,
)
from gpuemu_flow.emulator.effects import (
    moves as clusters,
)
from gpuemu_flow.emulator.effects import (
    stack as calls,
)
from gpuemu_flow.emulator.effects.effect import Effect

_EFFECTS: dict[str, Effect] = {
    **moves.EFFECTS,
    **loads.EFFECTS,
    **barriers.EFFECTS,
    **warps.EFFECTS,
    **atomics.EFFECTS,
    **asynchronous.EFFECTS,
    **matrices.EFFECTS,
    **wmma.EFFECTS,
    **watch.EFFECTS,
    **perturb.EFFECTS,
    **wgmma.EFFECTS,
    **mbarriers.EFFECTS,
    **stack.EFFECTS,
    **tensors.EFFECTS,
    **calls.EFFECTS,
    **carries.EFFECTS,
    **clusters.EFFECTS,
}


def find_effect(opcode: Opcode) -> Effect | None:
    """Return the `Effect` that implements an opcode.

    Returns
    -------
    Effect or None
        None for an opcode that a lane-wise function implements (see `forms`), and for an unknown
        opcode.
    """
    if opcode.base == "call":
        return _EFFECTS.get(opcode.text)
    return _EFFECTS.get(opcode.base)


def effect_sections() -> dict[str, str]:
    """Map the base name of each instruction with an `Effect` to its section of the PTX ISA."""
    return {name: _EFFECTS[name].section for name in effect_bases()}


def effect_bases() -> tuple[str, ...]:
    """List the base names of the instructions that an `Effect` implements, sorted."""
    return tuple(sorted(name for name in _EFFECTS if not name.startswith("!")))
