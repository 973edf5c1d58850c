"""Run `Model` and `ModelNew` of KernelBench problems as reference and op.

``gpuemu-flow import kernelbench`` copies this module into the workspace. The module needs numpy and
torch, but nothing of gpuemu-flow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from adapters import files
from adapters.tensors import seed_all

MOST_WEIGHTS = 256 << 20


def reference(names: dict[str, Any], folder: str) -> Callable[..., Any]:
    """Make the function that runs a problem's `Model` in the dtype that the inputs have.

    `names`: The globals of the problem's module. Globals that ``problem.json`` lists, such as
    sizes that the import scaled down, are set to the values given there. `folder`: Holds
    ``problem.json`` and ``weights.npz``.
    """
    described = files.described(folder)
    names.update({name: plain(value) for name, value in described["globals"].items()})
    return Caller(names["Model"], described, folder)


def candidate(path: str, folder: str) -> Callable[..., Any]:
    """Make the function that runs `ModelNew` of a candidate's file."""
    module = files.loaded("candidate", Path(path))
    device = "cuda" if b"cpp_extension" in Path(path).read_bytes() else "cpu"
    return Caller(module.ModelNew, files.described(folder), folder, device)


class Caller:
    """Calls a model with the problem's weights, which are restored before each call."""

    def __init__(
        self, model_class: Any, described: Mapping[str, Any], folder: str, device: str = "cpu"
    ) -> None:
        self._device = device
        self._class = model_class
        self._described = described
        self._weights = Path(folder, "weights.npz")
        self._made: dict[Any, tuple[Any, dict[str, Any]]] = {}

    def __call__(self, all_inputs: Mapping[str, Any]) -> Any:
        """Call the model with inputs given by name, and return its outputs."""
        given = {name: self._on_device(as_tensor(value)) for name, value in all_inputs.items()}
        model, state = self._model(_float_of(given.values()))
        arguments = [
            given[one["name"]] if "name" in one else plain(one["value"])
            for one in self._described["arguments"]
        ]
        for one, at in zip(self._described["arguments"], range(len(arguments)), strict=True):
            if one.get("part") == "upper":
                arguments[at] = torch.triu(arguments[at])
            elif one.get("part") == "lower":
                arguments[at] = torch.tril(arguments[at])
        if state:
            model.load_state_dict(state)
        seed_all(self._described["seed"])
        with torch.no_grad():
            return as_outputs(model(*arguments))

    def _on_device(self, value: Any) -> Any:
        return value.to(self._device) if isinstance(value, torch.Tensor) else value

    def _model(self, dtype: Any) -> tuple[Any, dict[str, Any]]:
        if dtype not in self._made:
            seed_all(self._described["seed"])
            model = self._class(*[plain(value) for value in self._described["init"]])
            share(model, self._weights)
            model = model.to(dtype).to(self._device)
            state = {name: value.clone() for name, value in model.state_dict().items()}
            self._made[dtype] = model, state
        return self._made[dtype]


def share(model: Any, path: Path) -> None:
    """Load those weights of a file into a model that match the model's in name and shape."""
    if not path.is_file():
        return
    own = model.state_dict()
    with np.load(path, allow_pickle=False) as kept:
        for name in kept.files:
            if name in own and tuple(own[name].shape) == kept[name].shape:
                with torch.no_grad():
                    own[name].copy_(torch.from_numpy(kept[name]))


def as_tensor(value: Any) -> Any:
    """Return a torch tensor that shares an array's memory, or a copy if torch cannot share it."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind not in "biufc":  # bfloat16 and its like: float32 holds all of their values
        value = value.astype(np.float32)
    if not value.flags.writeable or any(stride < 0 for stride in value.strides):
        value = value.copy()
    return torch.from_numpy(value)


def as_outputs(returned: Any) -> Any:
    """Return a model's outputs as one tensor or a tuple."""
    if isinstance(returned, Mapping):
        returned = tuple(returned.values())
    if isinstance(returned, (tuple, list)):
        return tuple(returned) if len(returned) > 1 else returned[0]
    return returned


def plain(value: Any) -> Any:
    """Convert a JSON value to Python's types; ``{"tuple": [...]}`` becomes a tuple."""
    if isinstance(value, dict):
        return tuple(plain(one) for one in value["tuple"])
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value


def _float_of(tensors: Any) -> Any:
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            return tensor.dtype
    return torch.float32
