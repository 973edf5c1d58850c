"""Join inputs that form one argument for a call, and split them again after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuemu_flow.runners.api import Program

Inputs = Mapping[str, np.ndarray]
_LIST = "list"


def argument_names(program: Program) -> tuple[str, ...]:
    """Return the names of a program's arguments in order; a group counts as one argument."""
    return _of_members(program, program.input_names)


def changed_arguments(program: Program) -> tuple[str, ...]:
    """Return the names of arguments that a program may change."""
    return _of_members(program, program.mutates)


def _of_members(program: Program, names: Sequence[str]) -> tuple[str, ...]:
    if not program.groups:
        return tuple(dict.fromkeys(names))
    group_of = {m: name for name, group in program.groups.items() for m in group["members"]}
    return tuple(dict.fromkeys(group_of.get(name, name) for name in names))


def joined(program: Program, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name, with the inputs of each group joined into one argument.

    Depending on the group, its inputs become a list or one complex array. Absent inputs are left
    out of a list.
    """
    if not program.groups:
        return dict(given)
    made: dict[str, Any] = {}
    for name in argument_names(program):
        group = program.groups.get(name)
        if group is None:
            made[name] = given[name]
        elif group["kind"] == _LIST:
            made[name] = [given[m] for m in group["members"] if given[m] is not None]
        else:
            made[name] = _complex(*(given[member] for member in group["members"]))
    return made


def take_apart(program: Program, given: Mapping[str, Any], inputs: Inputs) -> None:
    """Copy changes that a call made to joined complex arrays back to the inputs.

    Each such array was joined from two inputs: its real and its imaginary part.
    """
    for name, group in program.groups.items():
        if group["kind"] == _LIST or name not in given:
            continue
        for member, part in zip(group["members"], ("real", "imag"), strict=True):
            now, before = np.ascontiguousarray(getattr(given[name], part)), inputs[member]
            if now.tobytes() != before.tobytes() and before.flags.writeable:
                before[...] = now


def _complex(real: np.ndarray, imag: np.ndarray) -> np.ndarray:
    wide = real.dtype.itemsize > np.dtype(np.float32).itemsize
    made = np.empty_like(real, dtype=np.complex128 if wide else np.complex64)
    made.real, made.imag = real, imag
    return made
