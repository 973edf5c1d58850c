"""Run a definition of FlashInfer-Bench with given sizes. Used only in a sandboxed worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from adapters.flashinfer import in_order
from adapters.probe_envelope import NotTakenError, ProbeRequest, answers
from adapters.stand_in import on_cpu
from adapters.tensors import seed_all

_KNOWN: dict[str, Any] = {}


def _answer(request: ProbeRequest) -> dict[str, Any]:
    """Run the definition with the requested inputs, and return the shapes of its outputs.

    Exceptions of the problem's code propagate.
    """
    names = _load()
    seed_all(request["seed"])
    given = {name: _made(one) for name, one in request["inputs"].items()}
    with torch.no_grad(), on_cpu():
        returned = in_order(names["run"](**given), {"outputs": request["outputs"]})
    outputs = returned if isinstance(returned, tuple) else (returned,)
    if len(outputs) != len(request["outputs"]):
        raise NotTakenError(f"run returns {len(outputs)} outputs, not {len(request['outputs'])}")
    for name, one in zip(request["outputs"], outputs, strict=True):
        if not isinstance(one, torch.Tensor):
            raise NotTakenError(f"output {name} is a {type(one).__name__}, no tensor")
    return {"shapes": [list(one.shape) for one in outputs]}


probe = answers(_answer)


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
    """Make one input from its description: a scalar, evenly spaced offsets, or random values."""
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
