"""The step that perturbs a result within an error bound; the emulator adds it to a program."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from gpuemu_flow.emulator.effects.effect import Effect
from gpuemu_flow.emulator.ir import Immediate, Operand, Step
from gpuemu_flow.emulator.types import Array

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter

PERTURB = "!perturb"


class Perturber:
    """Perturbs values within an error bound.

    One draw adds the whole bound to each value, another subtracts it, and all further draws add or
    subtract a random part of it. The random parts differ between the calls within a launch. They
    are the same again when the launch is repeated.
    """

    def __init__(self, bound: float, absolute_below: float, draw: int, step: int) -> None:
        self._bound, self._least, self._draw = bound, absolute_below, draw
        self._step = step

    def __call__(self, values: Array, done: int) -> Array:
        wide = values.astype(np.float64)
        # Half a unit in the last place is used up by the rounding of the value itself.
        bound = max(self._bound - float(np.finfo(values.dtype).eps) / 2, 0.0)
        share: Array | float = 1.0 if self._draw == 0 else -1.0
        if self._draw > 1:
            random = np.random.default_rng([self._draw, self._step, done])
            share = random.uniform(-1.0, 1.0, wide.shape)
        size = np.maximum(np.abs(wide), self._least)
        moved = (wide + share * bound * size).astype(values.dtype)
        return np.where(np.isfinite(wide) & np.isfinite(moved), moved, values)


def _value(operand: Operand) -> float:
    assert isinstance(operand, Immediate)
    return float(struct.unpack("<d", operand.value.to_bytes(8, "little"))[0])


def _emit(emitter: Emitter, step: Step, index: int) -> None:
    target, source, bound, least, draw = step.operands
    assert isinstance(draw, Immediate)
    type_name = step.opcode.type
    mover = Perturber(_value(bound), _value(least), draw.value, index)
    function = emitter.function(mover, f"move {index}")
    call = f"{function}({emitter.read(source, type_name)}, m.launch.executed)"
    emitter.write(target, call, type_name, step)


EFFECTS = {PERTURB: Effect(lambda step: "", _emit, "")}
