"""The step that reports lanes with an undefined register; the emulator adds it to a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuemu_flow.emulator.effects.effect import Effect
from gpuemu_flow.emulator.ir import Step

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter

UNDEFINED = "!undefined"


def _emit(emitter: Emitter, step: Step, index: int) -> None:
    undefined = emitter.read(step.operands[0], "pred")
    emitter.do(f"m.check_defined({undefined}, {emitter.mask(step)}, {index})")


EFFECTS = {UNDEFINED: Effect(lambda step: "", _emit, "")}
