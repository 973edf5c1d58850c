"""Run problems of GPU MODE's reference-kernels: `generate_input`, `ref_kernel`, `custom_kernel`.

``gpuemu-flow import gpumode`` copies this module into the workspace. The module needs numpy and
torch, but nothing of gpuemu-flow.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from adapters import files
from adapters.stand_in import on_cpu
from adapters.tensors import as_array, as_tensor, copied, leaves, outputs_of, seed_all

Described = Mapping[str, Any]
SEEDS = 1 << 31


def reference(names: Mapping[str, Any], folder: str) -> Callable[..., Any]:
    """Make the function that runs `ref_kernel`.

    `names` are the globals of the problem's file; `folder` holds its ``problem.json``. The inputs
    have the dtypes of the problem where its own check or tolerance judges: these are about what
    `ref_kernel` returns then, not about an exact result.
    """
    described = files.described(folder)

    def run(all_inputs: Mapping[str, Any]) -> Any:
        dtypes = {one["name"]: one.get("dtype") for one in described["inputs"]}
        given = {
            name: as_tensor(value).to(getattr(torch, dtypes[name])) if dtypes.get(name) else value
            for name, value in all_inputs.items()
        }
        with torch.no_grad(), on_cpu():
            seed_all(0)
            return outputs_of(names["ref_kernel"](assembled(described, given)))

    return run


def candidate(path: str, folder: str) -> Callable[..., Any]:
    """Make the function that runs `custom_kernel` of a candidate's file.

    `path` is this file; `folder` holds the ``problem.json`` of the problem.
    """
    described = files.described(folder)
    content = Path(path).read_bytes()
    # Triton's interpreter stands in for a GPU itself; for CUDA there is an emulated one.
    device = "cuda" if b"cpp_extension" in content else "cpu"
    asks = b"triton" not in content and any(word in content for word in (b"cuda", b"hip", b"xpu"))
    asks &= device == "cpu"
    here = on_cpu if asks else nullcontext
    with here():
        module = files.loaded("submission", Path(path))

    def run(all_inputs: Mapping[str, Any]) -> Any:
        # The kernel may write into its inputs: the problem's check compares only what it returns.
        data = assembled(described, all_inputs, device)
        with torch.no_grad():
            seed_all(0)
            with here():
                return outputs_of(module.custom_kernel(data))

    return run


def generator(names: Mapping[str, Any], folder: str) -> Callable[..., Any]:
    """Make the function that calls `generate_input` and returns one of its tensors.

    `names` are the globals of the problem's file; `folder` holds its ``problem.json``.
    """
    described = files.described(folder)
    known = [one["name"] for one in described["inputs"]]

    def generate(name: str, dims: Mapping[str, int], case_seed: int) -> Any:
        calls = described["calls"]
        arguments = {**calls[case_seed % len(calls)], **dims}
        made = made_inputs(names["generate_input"], arguments, case_seed % SEEDS)
        tensors = [one for one in leaves(made) if isinstance(one, torch.Tensor)]
        return as_array(tensors[known.index(name)])

    return generate


def checker(names: Mapping[str, Any], folder: str) -> Callable[..., Any]:
    """Make the function that checks an output with `check_implementation`.

    `names` are the globals of the problem's file; `folder` holds its ``problem.json``.
    """
    described = files.described(folder)

    def check(actual: Any, expected: Any, inputs: Mapping[str, Any], tolerance: Any) -> list[str]:
        with torch.no_grad(), on_cpu():
            data = assembled(described, inputs)
            answer = names["check_implementation"](data, as_tensor(actual))
        return verdict(answer)

    return check


def verdict(answer: Any) -> list[str]:
    """Return the failures that the result of `check_implementation` reports."""
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], bool):
        return [] if answer[0] else [str(answer[1])[:500] or "not accepted"]
    if isinstance(answer, (list, tuple)):
        return [str(one)[:500] for one in answer if str(one).strip()]
    if isinstance(answer, bool):
        return [] if answer else ["not accepted"]
    return [str(answer)[:500]] if answer else []


def made_inputs(function: Any, arguments: Mapping[str, Any], seed: int) -> Any:
    """Call `generate_input` with a test's arguments and the given seed."""
    seed_all(seed)
    given = dict(arguments)
    if "seed" in inspect.signature(function).parameters:
        given["seed"] = seed
    with on_cpu():
        return function(**given)


def assembled(described: Described, all_inputs: Mapping[str, Any], device: str = "cpu") -> Any:
    """Rebuild the value that `generate_input` returned, from copies of a case's inputs."""
    given = {name: as_tensor(value, device) for name, value in all_inputs.items()}
    return copied(_filled(described["data"], described, given))


def _filled(part: Any, described: Described, given: Mapping[str, Any]) -> Any:
    kind, held = next(iter(part.items()))
    if kind == "input":
        value, order = given[held], part.get("order")
        if order:  # in memory as `generate_input` laid it out: kernels take its address
            back = sorted(range(len(order)), key=order.__getitem__)
            value = value.permute(order).contiguous().permute(back)
        return value.view(getattr(torch, part["view"])) if "view" in part else value
    if kind == "arg":
        return _argument(held, described, given)
    if kind == "dict":
        return {key: _filled(one, described, given) for key, one in held}
    if kind in ("tuple", "list"):
        parts = [_filled(one, described, given) for one in held]
        return tuple(parts) if kind == "tuple" else parts
    return held


def _argument(name: str, described: Described, given: Mapping[str, Any]) -> Any:
    """Return the value of the test's argument `name`.

    If the argument decides the size of an axis of an input, return this size, taken from the inputs
    in `given`. Otherwise, return the argument's fixed value.
    """
    found = described["axes"].get(name)
    if found is None:
        return described["calls"][0][name]
    tensor, axis = found
    return given[tensor].shape[axis]
