"""Run problems of FlashInfer-Bench: a definition's `run` as reference, a solution as op.

``gpuemu-flow import flashinfer-bench`` copies this module into the workspace. The module needs
numpy and torch, but nothing of gpuemu-flow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from adapters import files, solution
from adapters.stand_in import on_cpu
from adapters.tensors import as_tensor, seed_all

Described = Mapping[str, Any]


def reference(names: Mapping[str, Any], folder: str) -> Callable[..., Any]:
    """Make the function that runs a definition's `run` in the dtype that the inputs have.

    `names` are the global names of the definition's module, `run` among them. `folder` is the
    folder of the imported problem.
    """
    described = files.described(folder)

    def run(all_inputs: Mapping[str, Any]) -> Any:
        given = {name: as_tensor(value) for name, value in all_inputs.items()}
        with torch.no_grad(), on_cpu():
            seed_all(0)
            returned = names["run"](**_arguments(described, given))
        return in_order(returned, described)

    return run


def candidate(path: str, folder: str) -> Callable[..., Any]:
    """Make the function that runs the entry point of the solution in a JSON file."""
    described = files.described(folder)
    found = solution.read(path, described["definition"])
    here = on_cpu if found.gpu else nullcontext
    with here():
        module = solution.loaded(path, found)
    function = getattr(module, found.function)
    device = "cuda" if found.cuda else "cpu"

    def run(all_inputs: Mapping[str, Any]) -> Any:
        given = {name: as_tensor(value, device) for name, value in all_inputs.items()}
        arguments = _arguments(described, given)
        with torch.no_grad(), here():
            seed_all(0)
            if not found.destination:
                return in_order(function(**arguments), described)
            made = [one.to(device) for one in _destinations(described, given)]
            function(*arguments.values(), *made)
            return tuple(made) if len(made) > 1 else made[0]

    return run


def _arguments(described: Described, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by name, in the order in which the definition lists its inputs."""
    return {name: given[name] for name in described["inputs"]}


def _destinations(described: Described, given: Mapping[str, Any]) -> list[Any]:
    """Return the tensors to write outputs into, filled with values that show missing writes."""
    sizes = dict(described["consts"])
    for name, axes in described["inputs"].items():
        for at, axis in enumerate(axes or ()):
            sizes[axis] = given[name].shape[at]
    for name, (other, factor, offset, divisor) in described["told"].items():
        sizes[name] = (factor * sizes[other] + offset) // divisor
    made = []
    for output in described["outputs"].values():
        shape = [sizes[axis] for axis in output["shape"] or ()]
        dtype = getattr(torch, output["dtype"])
        filler = float("nan") if dtype.is_floating_point else True if dtype is torch.bool else -77
        made.append(torch.full(shape, filler, dtype=torch.float32).to(dtype))
    return made


def in_order(returned: Any, described: Described) -> Any:
    """Return the outputs in the order of the definition."""
    if isinstance(returned, Mapping):
        returned = tuple(returned[name] for name in described["outputs"])
    if isinstance(returned, (tuple, list)):
        return tuple(returned) if len(returned) > 1 else returned[0]
    return returned
