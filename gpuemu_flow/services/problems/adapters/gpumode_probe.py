"""Run a problem of GPU MODE to find its inputs and outputs. Used only in a sandboxed worker."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from adapters import files
from adapters.gpumode import is_object, made_inputs, packed, unpacked, verdict
from adapters.probe_envelope import NotTakenError, ProbeRequest, answers
from adapters.stand_in import on_cpu
from adapters.tensors import AS_BYTES, MOST_LEAVES, copied, outputs_of, seed_all

LARGEST = 1 << 24
_KNOWN: dict[str, Any] = {}


def _answer(request: ProbeRequest) -> dict[str, Any]:
    """Run the problem with the requested arguments, and describe its inputs and outputs.

    Exceptions of the problem's code propagate.
    """
    names = _load()
    made = made_inputs(names["generate_input"], request["arguments"], request["seed"])
    inputs: list[dict[str, Any]] = []
    data = _taken_apart(made, request["arguments"], inputs)
    for one in inputs:
        if one["dtype"] not in request["dtypes"]:
            raise NotTakenError(f"input {one['name']} is {one['dtype']}")
        if one["size"] > LARGEST:
            raise NotTakenError(f"input {one['name']} has {one['size']} elements")
    with torch.no_grad(), on_cpu():
        seed_all(0)
        returned = names["ref_kernel"](copied(made))
    if isinstance(returned, Mapping):
        raise NotTakenError("ref_kernel returns a mapping; tensors, or a tuple of these, are taken")
    found = outputs_of(returned)
    outputs = found if isinstance(found, tuple) else (found,)
    for one in outputs:
        if not isinstance(one, torch.Tensor):
            raise NotTakenError(f"ref_kernel returns a {type(one).__name__}, no tensor")
    with torch.no_grad(), on_cpu():
        if request["check"]:
            given = unpacked(packed(found)) if isinstance(found, tuple) else returned
            said = verdict(names["check_implementation"](copied(made), given))
            if said:
                raise NotTakenError(f"its check refuses its own reference: {said[0][:200]}")
    return {
        "init": [],
        "globals": {},
        "arguments": [*inputs, {"value": json.dumps(data)}],
        "outputs": [
            {"rank": one.dim(), "float": one.is_floating_point(), "finite": True} for one in outputs
        ],
    }


probe = answers(_answer)


def _load() -> Mapping[str, Any]:
    """Return the globals of the problem's file, which is executed on the first call."""
    if not _KNOWN:
        folder = Path("problem").absolute()
        sys.path.insert(0, str(folder))
        with on_cpu():
            names = vars(files.loaded("reference", folder / "reference.py", listed=True))
        for name in ("generate_input", "ref_kernel"):
            if not callable(names.get(name)):
                raise NotTakenError(f"it defines no function {name}")
        _KNOWN.update(names)
    return _KNOWN


def _taken_apart(value: Any, arguments: Mapping[str, Any], inputs: list[dict[str, Any]]) -> Any:
    """Describe `value` as JSON, with names for its tensors; add the tensors to `inputs`.

    An integer that equals exactly one of `arguments` is described by the name of that argument.
    """
    if isinstance(value, torch.Tensor):
        if value.is_complex() or value.is_quantized or value.layout != torch.strided:
            raise NotTakenError("an input is complex, quantized or sparse")
        if len(inputs) >= MOST_LEAVES - 1:
            raise NotTakenError("it has too many inputs")
        dtype = str(value.dtype).removeprefix("torch.")
        name = f"in{len(inputs)}"
        part: dict[str, Any] = {"input": name}
        if dtype in AS_BYTES:
            part["view"], dtype = dtype, "uint8"
        order = sorted(range(value.dim()), key=value.stride, reverse=True)
        if order != list(range(value.dim())) and value.permute(order).is_contiguous():
            part["order"] = order
        inputs.append(
            {
                "name": name,
                "shape": list(value.shape),
                "dtype": dtype,
                "float": value.is_floating_point() and "view" not in part,
                "size": value.numel(),
            }
        )
        return part
    if isinstance(value, Mapping):
        if not all(type(key) in (str, int) for key in value):
            raise NotTakenError("a mapping has keys that are no texts")
        return {"dict": [[k, _taken_apart(one, arguments, inputs)] for k, one in value.items()]}
    for kind in (tuple, list, set):
        if isinstance(value, kind):
            parts = [_taken_apart(one, arguments, inputs) for one in value]
            named = {"class": _place(value)} if hasattr(value, "_fields") else {}
            return {kind.__name__: parts, **named}
    if value is None or type(value) in (bool, int, float, str):
        same = [name for name, one in arguments.items() if type(one) is int and one == value]
        if type(value) is int and same and len(set(same)) == 1:
            return {"arg": same[0]}
        return {"value": value}
    if is_object(value):
        attributes = _taken_apart(dict(vars(value)), arguments, inputs)
        return {"object": attributes, "class": _place(value)}
    raise NotTakenError(f"generate_input gives a {type(value).__name__}")


def _place(value: Any) -> str:
    """Return where the class of an object is found again: its module and name."""
    kind = type(value)
    if vars(sys.modules[kind.__module__]).get(kind.__name__) is not kind:
        raise NotTakenError(f"generate_input gives a {kind.__name__}, which no module defines")
    return f"{kind.__module__}:{kind.__name__}"
