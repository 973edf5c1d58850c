"""Try a definition of FlashInfer-Bench with given sizes. Runs in a fenced worker alone.

A request is JSON in an array of bytes, and so is the answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from adapters.flashinfer import in_order
from adapters.stand_in import on_cpu
from adapters.tensors import seed_all

_KNOWN: dict[str, Any] = {}


class NotTakenError(Exception):
    """Raised for a problem in a form that no workspace can express."""


def probe(request: Any) -> Any:
    """Answer one request; what the problem itself raises goes through."""
    asked = json.loads(bytes(request))
    torch.set_num_threads(1)
    try:
        found = _answer(asked)
    except NotTakenError as error:
        found = {"not_taken": str(error)}
    return np.frombuffer(json.dumps(found).encode(), np.uint8).copy()


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    names = _load()
    seed_all(asked["seed"])
    given = {name: _made(one) for name, one in asked["inputs"].items()}
    with torch.no_grad(), on_cpu():
        returned = in_order(names["run"](**given), {"outputs": asked["outputs"]})
    outputs = returned if isinstance(returned, tuple) else (returned,)
    if len(outputs) != len(asked["outputs"]):
        raise NotTakenError(f"run returns {len(outputs)} outputs, not {len(asked['outputs'])}")
    for name, one in zip(asked["outputs"], outputs, strict=True):
        if not isinstance(one, torch.Tensor):
            raise NotTakenError(f"output {name} is a {type(one).__name__}, no tensor")
    return {"shapes": [list(one.shape) for one in outputs]}


def _load() -> dict[str, Any]:
    if not _KNOWN:
        names: dict[str, Any] = {"__name__": "definition"}
        source = Path("problem/reference.py").read_bytes()
        with on_cpu():
            exec(compile(source, "reference.py", "exec", dont_inherit=True), names)  # noqa: S102
        if not callable(names.get("run")):
            raise NotTakenError("its reference defines no function run")
        _KNOWN.update(names)
    return _KNOWN


def _made(one: dict[str, Any]) -> Any:
    """Return one input: a scalar, the values of offsets, or values between two bounds."""
    if "value" in one:
        return one["value"]
    shape, dtype = one["shape"], getattr(torch, one["dtype"])
    if "to" in one:
        count = shape[-1]
        steps = [round(one["to"] * at / max(count - 1, 1)) for at in range(count)]
        return torch.tensor(steps, dtype=dtype).expand(shape).clone()
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    if dtype is torch.bool:
        return torch.rand(shape) < 0.5
    made = torch.randint(0, one["high"] + 1, shape)
    if made.numel():
        made.view(-1)[-1] = one["high"]
    return made.to(dtype)
