"""Run a KernelBench problem to find its inputs and weights. Used only in a sandboxed worker."""

from __future__ import annotations

import ast
import inspect
import io
import keyword
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from adapters.constants import replace_constants
from adapters.kernelbench import MOST_WEIGHTS, as_outputs
from adapters.probe_envelope import NotTakenError, ProbeRequest, answers
from adapters.tensors import seed_all

FILE = "reference.py"
LARGEST = 1 << 26
"""Largest number of elements of an input with which a model is tried."""


def _answer(request: ProbeRequest) -> Any:
    """Make the problem's inputs and, if requested, run the model or get its weights.

    Exceptions of the problem's code propagate.
    """
    seed = request["seed"]
    module = load(request["constants"])
    seed_all(seed)
    init = module.get_init_inputs()
    if not isinstance(init, (list, tuple)):
        raise NotTakenError("get_init_inputs returns no list")
    described = [to_json(one, "get_init_inputs") for one in init]
    drawn = DrawnBounds()
    seed_all(seed)
    with drawn:
        inputs = module.get_inputs()
    if not isinstance(inputs, (list, tuple)):
        raise NotTakenError("get_inputs returns no list")
    inputs = [_on_cpu(one) for one in inputs]
    arguments = [
        describe(one, name, drawn)
        for one, name in zip(inputs, names_of(module.Model, len(inputs)), strict=True)
    ]
    found: dict[str, Any] = {
        "init": described,
        "arguments": arguments,
        "globals": changed_globals(module, request["constants"]),
    }
    if request["what"] == "describe":
        return found
    seed_all(seed)
    model = module.Model(*init)
    if request["what"] == "weights":
        return weights(model)
    found["outputs"] = run(model, inputs)
    found["free"] = [
        one.get("name")
        for one, at in zip(arguments, range(len(inputs)), strict=True)
        if one.get("float") and request.get("values") and _takes_any(model, inputs, at)
    ]
    return found


probe = answers(_answer)


def load(constants: dict[str, int]) -> ModuleType:
    """Execute the problem's file, with the values in `constants` in place of those in the file."""
    source = Path(FILE).read_text(encoding="utf-8")
    tree = ast.parse(source, FILE)
    replace_constants(tree, constants)
    module = ModuleType("problem")
    module.__file__ = FILE
    exec(compile(tree, FILE, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - fenced
    for name in ("Model", "get_inputs", "get_init_inputs"):
        if not hasattr(module, name):
            raise NotTakenError(f"it defines no {name}")
    return module


def changed_globals(module: ModuleType, constants: dict[str, int]) -> dict[str, Any]:
    """Map the name of each global that changed constants affect to its value as JSON.

    `module` was loaded with the values in `constants` in place of those in the problem's file. The
    file is loaded again unchanged. A global of `module` is returned if it is a number, tuple or
    list and differs from that of the unchanged file.
    """
    if not constants:
        return {}
    before = load({})
    found = {}
    for name, value in vars(module).items():
        if name.startswith("__") or type(value) not in (int, float, tuple, list):
            continue
        if vars(before).get(name) != value:
            found[name] = to_json(value, name)
    return found


def names_of(model: Any, count: int) -> list[str]:
    """Return names for `count` inputs: the parameters of `forward`, then ``x2`` and so on."""
    parameters = list(inspect.signature(model.forward).parameters.values())[1:]
    plain = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD][:count]
    plain += [f"x{at}" for at in range(len(plain), count)]
    return [f"{name}_" if keyword.iskeyword(name) or name == "inputs" else name for name in plain]


class DrawnBounds:
    """Context in which the bounds of each call of ``torch.randint`` are recorded."""

    def __init__(self) -> None:
        self._real = torch.randint
        self.bounds: dict[int, tuple[int, int, Any]] = {}

    def __enter__(self) -> None:
        torch.randint = self._draw

    def __exit__(self, *_: object) -> None:
        torch.randint = self._real

    def _draw(self, *args: Any, **kwargs: Any) -> Any:
        made = self._real(*args, **kwargs)
        numbers = [one for one in args if type(one) is int]
        low = kwargs.get("low", numbers[0] if len(numbers) > 1 else 0)
        high = kwargs.get("high", numbers[-1] if numbers else 0)
        self.bounds[id(made)] = (low, high - 1, made)
        return made


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value


def describe(value: Any, name: str, drawn: DrawnBounds) -> dict[str, Any]:
    """Describe one argument of the model: its value or, for a tensor, the shape, dtype and range.

    If ``torch.randint`` made the tensor, the range is the one that the call requested, according to
    `drawn`. Otherwise it is the range of the values. Raises `NotTakenError` for an argument that is
    not supported, such as a complex tensor.
    """
    if not isinstance(value, torch.Tensor):
        return {"value": to_json(value, f"get_inputs ({name})")}
    if value.numel() > LARGEST:
        raise NotTakenError(f"input {name} has {value.numel()} elements")
    dtype = str(value.dtype).removeprefix("torch.")
    found: dict[str, Any] = {"name": name, "shape": list(value.shape), "dtype": dtype}
    if value.is_complex():
        raise NotTakenError(f"input {name} is {dtype}")
    if not value.numel():
        return found
    if value.is_floating_point():
        found |= {"float": True, "low": float(value.min()), "high": float(value.max())}
        kind, part = structure(value.double())
        found |= {"kind": kind} if kind else {}
        found |= {"part": part} if part else {}
    elif value.dtype is not torch.bool:
        low, high, _ = drawn.bounds.get(id(value), (int(value.min()), int(value.max()), None))
        found |= {"low": low, "high": high}
    return found


def structure(value: Any) -> tuple[str, str]:
    """Return the kind of a tensor's values, and the triangle that holds all non-zero values.

    The kind is ``one_hot``, ``probabilities`` or ``symmetric``; the triangle is ``upper`` or
    ``lower``. Each is empty if none applies.
    """
    if value.dim() >= 1 and value.shape[-1] > 1 and bool((value >= 0).all()):
        sums = value.sum(-1)
        if bool(((sums - 1).abs() < 1e-4).all()):
            hot = bool(((value == 0) | (value == 1)).all())
            return ("one_hot" if hot else "probabilities"), ""
    if value.dim() >= 2 and value.shape[-1] == value.shape[-2] > 1:
        if bool((value == value.mT).all()):
            return "symmetric", ""
        if bool((value.triu() == value).all()):
            return "", "upper"
        if bool((value.tril() == value).all()):
            return "", "lower"
    return "", ""


def run(model: Any, inputs: list[Any]) -> list[dict[str, Any]]:
    """Run the model in its own dtype and in float64, and describe the outputs of the first run.

    A reference may be called with float64 inputs. The second run shows whether the model accepts
    them.
    """
    import copy  # noqa: PLC0415

    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        returned = as_outputs(model(*[_copy(one) for one in inputs]))
        wide(*[_wide(one) for one in inputs])
    outputs = returned if isinstance(returned, tuple) else (returned,)
    for one in outputs:
        if not isinstance(one, torch.Tensor):
            raise NotTakenError(f"Model returns a {type(one).__name__}, no tensor")
    return [
        {
            "rank": one.dim(),
            "float": one.is_floating_point(),
            "finite": not one.is_floating_point() or bool(torch.isfinite(one).all()),
        }
        for one in outputs
    ]


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _wide(value: Any) -> Any:
    floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if floats else _copy(value)


def _takes_any(model: Any, inputs: list[Any], at: int) -> bool:
    """Tell whether the outputs stay finite if input `at` has values of either sign."""
    generator = torch.Generator().manual_seed(7)
    for scale in (1.0, 10.0):
        other = [_copy(one) for one in inputs]
        drawn = torch.randn(inputs[at].shape, generator=generator) * scale
        other[at] = drawn.to(inputs[at].dtype)
        try:
            with torch.no_grad():
                returned = as_outputs(model(*other))
        except Exception:
            return False
        outputs = returned if isinstance(returned, tuple) else (returned,)
        if not all(bool(torch.isfinite(one).all()) for one in outputs):
            return False
    return True


def weights(model: Any) -> bytes:
    """Return the model's weights as the bytes of an npz file; empty if they are too large."""
    state = {
        name: value.detach().cpu().contiguous().numpy()
        for name, value in model.state_dict().items()
        if str(value.dtype).removeprefix("torch.") not in ("bfloat16",)
    }
    if not state or sum(value.nbytes for value in state.values()) > MOST_WEIGHTS:
        return b" "
    with io.BytesIO() as file:
        np.savez(file, **state)
        return file.getvalue()


def to_json(value: Any, where: str) -> Any:
    """Return a plain value as JSON; raise `NotTakenError` for tensors and other objects."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, tuple):
        return {"tuple": [to_json(one, where) for one in value]}
    if isinstance(value, list):
        return [to_json(one, where) for one in value]
    raise NotTakenError(f"{where} gives a {type(value).__name__}")
