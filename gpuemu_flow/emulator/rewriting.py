"""Replace steps of a program by other steps, and adjust the program's branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gpuemu_flow.emulator.ir import KernelProgram, Register, Step


def rewritten(
    program: KernelProgram,
    pieces: Mapping[int, Sequence[Step]],
    *,
    first: Sequence[Step] = (),
    types: Sequence[str] = (),
) -> KernelProgram:
    """Make a program in which some steps are replaced."""
    steps, starts = list(first), []
    for index, step in enumerate(program.steps):
        starts.append(len(steps))
        steps += pieces.get(index, (step,))
    for index, step in enumerate(steps):
        if step.targets:
            steps[index] = replace(step, targets=tuple(starts[t] for t in step.targets))
    return replace(program, steps=steps, register_types=[*program.register_types, *types])


def new_register(program: KernelProgram, extra: Sequence[str], type_name: str) -> Register:
    """Return a new register; its number follows the program's registers and the `extra` ones."""
    return Register(len(program.register_types) + len(extra), type_name)


def like(step: Step, **changes: Any) -> Step:
    """Copy a step without its branch targets, and replace the fields given as keywords."""
    return replace(step, targets=(), **changes)
