"""Convert inputs to a program's arguments: tensors, scalars as numbers, None if absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpuemu_flow.runners.api import Program
from gpuemu_flow.runners.grouping import joined
from gpuemu_flow.types import Json

Inputs = Mapping[str, np.ndarray]


def arguments(program: Program, inputs: Inputs) -> dict[str, Any]:
    """Return the arguments of a call by name, in the order of the program's inputs."""
    return joined(program, given_values(program, inputs))


def given_values(program: Program, inputs: Inputs) -> dict[str, Any]:
    """Return the inputs as functions get them: scalars as values, None for an absent one."""
    if not (program.scalars or program.optional):
        return dict(inputs)
    return {name: _argument(program, name, array) for name, array in inputs.items()}


def split(program: Program, inputs: Inputs) -> tuple[dict[str, np.ndarray], dict[str, Json]]:
    """Return the inputs that are passed as tensors, and the others as keyword arguments."""
    given = given_values(program, inputs)
    rest = {name: v for name, v in given.items() if v is not inputs[name]}
    return {name: array for name, array in inputs.items() if name not in rest}, rest


def for_protocol(program: Program, inputs: Inputs) -> tuple[dict[str, np.ndarray], dict[str, Json]]:
    """Split the inputs of a script as `split` does, but leave out absent inputs."""
    tensors, rest = split(program, inputs)
    return tensors, {name: value for name, value in rest.items() if value is not None}


def pinned(program: Program, inputs: Inputs) -> tuple[Program, dict[str, np.ndarray]]:
    """Return the program with a case's scalars as keyword arguments, and the case's tensors.

    Inputs that are absent become keyword arguments, too.
    """
    tensors, rest = split(program, inputs)
    if not rest:
        return program, tensors
    names = tuple(name for name in program.input_names if name not in rest)
    kwargs = {**program.kwargs, **rest}
    return replace(program, kwargs=kwargs, input_names=names, scalars={}, optional=()), tensors


def is_absent(array: np.ndarray) -> bool:
    """Tell whether an array stands for None: it has axes, all of size 0."""
    return array.ndim > 0 and not any(array.shape)


def _argument(program: Program, name: str, array: np.ndarray) -> Any:
    if name in program.scalars and array.size == 1:
        choices = program.scalars[name]
        value = array.reshape(-1)[0].item()
        return value if choices is None else choices[value % len(choices)]
    if name in program.optional and is_absent(array):
        return None
    return array
