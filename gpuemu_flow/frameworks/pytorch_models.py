"""Whole PyTorch models: each layer compared with a copy of it on the CPU in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gpuemu_flow.client.context import failed
from gpuemu_flow.client.results import ValidationResult
from gpuemu_flow.errors import Problem, UsageError
from gpuemu_flow.frameworks.base import outputs_of, require
from gpuemu_flow.frameworks.local import compare


@dataclass
class ModelContext:
    """What is known of a model's layers.

    Attributes
    ----------
    results : list of (str, ValidationResult)
        One for each call of a layer, by the layer's name, in order.
    """

    results: list[tuple[str, ValidationResult]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """At least one layer was called, and all of them passed."""
        return bool(self.results) and all(result.passed for _, result in self.results)

    @property
    def failures(self) -> list[tuple[str, ValidationResult]]:
        """Calls that did not pass."""
        return [(name, result) for name, result in self.results if not result.passed]


@contextmanager
def validate_model(
    model: Any,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    reference_dtype: str = "float64",
    atol: float | None = None,
    rtol: float | None = None,
    raise_on_failure: bool = True,
) -> Iterator[ModelContext]:
    """Compare the layers of a model with copies of them, call by call, while the body runs it.

    A layer is a module without submodules. Its copy gets the very inputs that the layer gets, in
    `reference_dtype`, so that errors of earlier layers do not count again. A layer that draws
    random numbers (dropout in training mode) cannot agree: call ``model.eval()`` first.

    Parameters
    ----------
    model : torch.nn.Module
    device : str
        Where the copies run.
    dtype : str, optional
        Convert the model to this one first, for the time of the body.
    raise_on_failure : bool

    Raises
    ------
    ValidationError
        After the body, for the first call that did not pass.
    UsageError
        ``validate-arguments``: `model` is no module; ``validate-nothing-ran``: it was not called.
    """
    torch = require("torch", "torch")
    if not isinstance(model, torch.nn.Module):
        message = f"a torch.nn.Module is expected, not {type(model).__name__}"
        raise UsageError(Problem("validate-arguments", message))
    context = ModelContext()
    # A root without submodules is a layer itself.
    layers = {n or type(m).__name__: m for n, m in model.named_modules() if not any(m.children())}
    wide = getattr(torch, reference_dtype)
    before = {n: t.dtype for n, t in _floating(model)}
    if dtype is not None:
        model.to(getattr(torch, dtype))

    def hook(name: str, twin: Any) -> Callable[..., None]:
        def judge(_: Any, args: Any, kwargs: Any, output: Any) -> None:
            with torch.no_grad():
                expected = twin(
                    *(_wide(torch, a, device, wide) for a in args),
                    **{k: _wide(torch, v, device, wide) for k, v in kwargs.items()},
                )
            ours = [o for o in outputs_of(output) if isinstance(o, torch.Tensor)]
            theirs = [o for o in outputs_of(expected) if isinstance(o, torch.Tensor)]
            result = compare(ours, theirs, op_name=name, atol=atol, rtol=rtol)
            context.results.append((name, result))

        return judge

    handles = []
    try:
        for name, layer in layers.items():
            twin = copy.deepcopy(layer).to(device=device, dtype=wide)
            handles.append(layer.register_forward_hook(hook(name, twin), with_kwargs=True))
        yield context
    finally:
        for handle in handles:
            handle.remove()
        if dtype is not None:
            for name, tensor in _floating(model):
                tensor.data = tensor.data.to(before[name])
    if not context.results:
        raise UsageError(
            Problem("validate-nothing-ran", "no layer of the model was called", "call the model")
        )
    if raise_on_failure and context.failures:
        raise failed(context.failures[0][1])


def _floating(model: Any) -> list[tuple[str, Any]]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [(name, tensor) for name, tensor in tensors if tensor.dtype.is_floating_point]


def _wide(torch: Any, value: Any, device: str, dtype: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    moved = value.detach().to(device)
    return moved.to(dtype) if moved.dtype.is_floating_point else moved
