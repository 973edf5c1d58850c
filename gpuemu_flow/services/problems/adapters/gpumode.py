"""Run problems of GPU MODE's reference-kernels: `generate_input`, `ref_kernel`, `custom_kernel`.

``gpuemu-flow import gpumode`` copies this module into the workspace. The module needs numpy and
torch, but nothing of gpuemu-flow.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from adapters import files
from adapters.stand_in import on_cpu
from adapters.tensors import as_array, as_tensor, copied, leaves, mapped, outputs_of, seed_all

Described = Mapping[str, Any]
SEEDS = 1 << 31
TYPES = "data_types.py"
"""The classes of ``reference.py`` whose objects `generate_input` gives: candidates read these."""
_DTYPES = [one for one in vars(torch).values() if isinstance(one, torch.dtype)]


def reference(names: Mapping[str, Any], folder: str) -> Callable[..., Any]:
    """Make the function that runs `ref_kernel`.

    `names` are the globals of the problem's file; `folder` holds its ``problem.json``. The inputs
    have the dtypes of the problem where its own check or tolerance judges: these are about what
    `ref_kernel` returns then, not about an exact result.
    """
    described = {**files.described(folder), "classes": names}

    def run(all_inputs: Mapping[str, Any]) -> Any:
        dtypes = {one["name"]: one.get("dtype") for one in described["inputs"]}
        given = {
            name: as_tensor(value).to(getattr(torch, dtypes[name])) if dtypes.get(name) else value
            for name, value in all_inputs.items()
        }
        with torch.no_grad(), on_cpu():
            seed_all(0)
            return _returned(described, names["ref_kernel"](assembled(described, given)))

    return run


def candidate(path: str, folder: str) -> Callable[..., Any]:
    """Make the function that runs `custom_kernel` of a candidate's file.

    `path` is this file; `folder` holds the ``problem.json`` of the problem.
    """
    described = files.described(folder)
    if (types := Path(folder, TYPES)).is_file():
        described["classes"] = vars(files.loaded("reference", types, listed=True))
    content = Path(path).read_bytes()
    # Triton's interpreter stands in for a GPU itself; for CUDA there is an emulated one.
    device = "cuda" if b"cpp_extension" in content else "cpu"
    asks = b"triton" not in content and any(word in content for word in (b"cuda", b"hip", b"xpu"))
    asks &= device == "cpu"
    here = on_cpu if asks else nullcontext
    with here():
        module = files.loaded("submission", Path(path), listed=True)

    def run(all_inputs: Mapping[str, Any]) -> Any:
        # The kernel may write into its inputs: the problem's check compares only what it returns.
        data = assembled(described, all_inputs, device)
        with torch.no_grad():
            seed_all(0)
            with here():
                return _returned(described, module.custom_kernel(data))

    return run


def generator(names: Mapping[str, Any], folder: str) -> Callable[..., Any]:
    """Make the function that calls `generate_input` and returns one of its tensors.

    `names` are the globals of the problem's file; `folder` holds its ``problem.json``.
    """
    described = files.described(folder)
    known = [one["name"] for one in described["inputs"]]

    def generate(name: str, dims: Mapping[str, int], case_seed: int) -> Any:
        calls = described["calls"]
        arguments = dict(calls[case_seed % len(calls)])
        arguments |= {each: dims[each] for each in arguments if each in dims}
        made = made_inputs(names["generate_input"], arguments, case_seed % SEEDS)
        tensors = [one for one in leaves(_opened(made)) if isinstance(one, torch.Tensor)]
        return as_array(tensors[known.index(name)])

    return generate


def checker(names: Mapping[str, Any], folder: str) -> Callable[..., Any]:
    """Make the function that checks an output with `check_implementation`.

    `names` are the globals of the problem's file; `folder` holds its ``problem.json``.
    """
    described = {**files.described(folder), "classes": names}

    def check(actual: Any, expected: Any, inputs: Mapping[str, Any], tolerance: Any) -> list[str]:
        given, wanted = as_tensor(actual), as_tensor(expected)
        if described.get("packed"):
            given, wanted = unpacked(given), unpacked(wanted)
            if len(given) != len(wanted):  # their checks may look at the first ones alone
                return [f"number of outputs: {len(given)}, ref_kernel returns {len(wanted)}"]
        judge = names["check_implementation"]
        with torch.no_grad(), on_cpu():
            try:
                return verdict(judge(assembled(described, inputs), given))
            except Exception as error:  # an output that it cannot take
                judge(assembled(described, inputs), wanted)  # no verdict if this raises, too
                return [f"check_implementation: {type(error).__name__}: {error}"[:500]]

    return check


def _returned(described: Described, value: Any) -> Any:
    """Return the outputs in a returned value; for a check of several outputs, packed into one."""
    found = outputs_of(value)
    every = found if isinstance(found, tuple) else (found,)
    if not described.get("packed") or not isinstance(every[0], torch.Tensor):
        return found
    return packed(every)


def packed(tensors: tuple[Any, ...]) -> Any:
    """Return several tensors as one of bytes, each after its dtype, rank and shape."""
    parts = []
    for one in tensors:
        head = torch.tensor([_DTYPES.index(one.dtype), one.dim(), *one.shape])
        parts += [head, one.detach().cpu().flatten()]
    return torch.cat([one.contiguous().view(torch.uint8) for one in parts])


def unpacked(data: Any) -> tuple[Any, ...]:
    """Return the tensors that `packed` put together."""
    found = []
    while len(data):
        dtype, rank = data[:16].clone().view(torch.int64).tolist()
        start = 16 + 8 * rank
        shape = data[16:start].clone().view(torch.int64).tolist()
        end = start + math.prod(shape) * _DTYPES[dtype].itemsize
        found.append(data[start:end].clone().view(_DTYPES[dtype]).reshape(shape))
        data = data[end:]
    return tuple(found)


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


def is_object(value: Any) -> bool:
    """Tell whether a value is an object of a class of a problem, such as a dataclass or module."""
    plain = isinstance(value, (torch.Tensor, type, Mapping, tuple, list))
    plain |= callable(value) and not isinstance(value, torch.nn.Module)
    return hasattr(value, "__dict__") and not plain


def _opened(value: Any) -> Any:
    """Return a structure in which each object is replaced by its attributes."""
    return mapped(value, lambda one: _opened(dict(vars(one))) if is_object(one) else one)


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
    if kind == "object":
        made: Any = object.__new__(_class_of(part["class"], described))
        made.__dict__.update(_filled(held, described, given))
        return made
    if kind in ("tuple", "list", "set"):
        parts = [_filled(one, described, given) for one in held]
        named = _class_of(part["class"], described) if "class" in part else None
        return named(*parts) if named else {"tuple": tuple, "list": list, "set": set}[kind](parts)
    return held


def _class_of(path: str, described: Described) -> Any:
    module, _, name = path.partition(":")
    own = described["classes"] if module == "reference" else vars(importlib.import_module(module))
    return own[name]


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
