"""Validate whole PyTorch models: compare each layer with a float64 copy of it on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct, field

from gpuemu_flow.client.context import InputCopies, failed
from gpuemu_flow.client.results import ValidationResult
from gpuemu_flow.frameworks.base import outputs_of, require
from gpuemu_flow.frameworks.local import compare, reference_of, with_changes
from gpuemu_flow.frameworks.local_shadow import PLAIN, SHADOW, Versions
from gpuemu_flow.frameworks.pytorch import ADAPTER
from gpuemu_flow.model.errors import Problem, UsageError


class ModelContext(Struct):
    """The results for a model's layers.

    Attributes
    ----------
    results : list of (str, ValidationResult)
        The layer's name and the result, for each call of a layer, in the order of the calls.
    """

    results: list[tuple[str, ValidationResult]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Tell whether at least one layer was called and all calls passed."""
        return bool(self.results) and all(result.passed for _, result in self.results)

    @property
    def failures(self) -> list[tuple[str, ValidationResult]]:
        """Return the layer's name and the result of each call that did not pass."""
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
    """Compare the layers of a model with copies of them, call by call.

    The body of the ``with`` statement runs the model.

    A layer is a module without submodules. Its copy gets the layer's actual inputs, as they are
    before the call and converted to `reference_dtype`, so that errors of earlier layers do not
    count again. A layer that draws random numbers (dropout in training mode) cannot agree with its
    copy: call ``model.eval()`` first.

    Parameters
    ----------
    model : torch.nn.Module
    device : str
        Device that the copies run on.
    dtype : str, optional
        Dtype to which the model is converted while the body runs.
    reference_dtype : str
        Dtype in which the copies compute.
    atol, rtol : float, optional
        Replace the tolerance. By default it is measured on the copy if all outputs of the call are
        float32 or float64; otherwise it is the documented tolerance of the output's dtype.
    raise_on_failure : bool

    Raises
    ------
    ValidationError
        After the body, for the first call that did not pass.
    UsageError
        ``validate-arguments``: `model` is not a module. ``validate-nothing-ran``: no layer was
        called.
    """
    torch = require("torch", "torch")
    if not isinstance(model, torch.nn.Module):
        message = f"a torch.nn.Module is expected, not {type(model).__name__}"
        raise UsageError(Problem("validate-arguments", message))
    context = ModelContext()
    # A model without submodules is a single layer.
    layers = {n or type(m).__name__: m for n, m in model.named_modules() if not any(m.children())}
    wide = getattr(torch, reference_dtype)
    before = {n: t.dtype for n, t in _floating(model)}
    if dtype is not None:
        model.to(getattr(torch, dtype))

    entered: dict[str, InputCopies] = {}

    def keep(name: str) -> Callable[..., None]:
        def copy_inputs(_: Any, args: Any, kwargs: Any) -> None:
            entered[name] = InputCopies(_tensors(args, kwargs))

        return copy_inputs

    def hook(name: str, twin: _LayerCopy) -> Callable[..., None]:
        def judge(_: Any, args: Any, kwargs: Any, output: Any) -> None:
            given, changed = entered.pop(name).compare(_tensors(args, kwargs))
            tensors = {key: ADAPTER.to_numpy(value) for key, value in given.items()}

            def call(version: Any, arrays: Mapping[str, Any]) -> list[Any]:
                found: list[Any] = version.outputs(args, kwargs, arrays)
                return found

            ours = [o for o in outputs_of(output) if isinstance(o, torch.Tensor)]
            # The values that a layer rounds to a narrow dtype do not follow from its reference.
            measured = all(o.dtype in (torch.float32, torch.float64) for o in ours)
            result = compare(
                ours,
                twin.outputs(args, kwargs, tensors, keep=True),
                inputs=tensors,
                op_name=name,
                atol=atol,
                rtol=rtol,
                reference=reference_of(_Versions(twin), call) if measured else None,
            )
            context.results.append((name, with_changes(result, changed)))

        return judge

    handles = []
    try:
        for name, layer in layers.items():
            twin = _LayerCopy(copy.deepcopy(layer).to(device=device, dtype=wide), device, wide)
            handles.append(layer.register_forward_pre_hook(keep(name), with_kwargs=True))
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


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors among a call's arguments, keyed by position or name."""
    torch = require("torch", "torch")
    given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    return {str(key): value for key, value in given.items() if isinstance(value, torch.Tensor)}


def _floating(model: Any) -> list[tuple[str, Any]]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [(name, tensor) for name, tensor in tensors if tensor.dtype.is_floating_point]


class _LayerCopy(Struct, frozen=True):
    """A copy of a layer, converted to another dtype."""

    layer: Any
    device: str
    dtype: Any

    def outputs(
        self, args: Any, kwargs: Any, arrays: Mapping[str, Any], *, keep: bool = False
    ) -> list[Any]:
        """Repeat a call of the layer on this copy, and return the output tensors."""
        torch = require("torch", "torch")
        layer, device = self.layer, self.device

        def own(key: Any, value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            made = ADAPTER.from_numpy(arrays[str(key)]).to(device)
            return made.to(self.dtype) if made.dtype.is_floating_point else made

        given = tuple(own(place, value) for place, value in enumerate(args))
        by_name = {name: own(name, value) for name, value in kwargs.items()}
        with torch.no_grad():
            if keep:
                returned = layer(*given, **by_name)
            else:
                buffers = {name: b.clone() for name, b in layer.named_buffers()}
                returned = torch.func.functional_call(layer, buffers, given, by_name)
        return [o for o in outputs_of(returned) if isinstance(o, torch.Tensor)]


class _Versions(Versions):
    """A layer's float64 copy and, for PyTorch's own layers, a float32 copy.

    A user's own layer gets no float32 copy. If the layer has an error that validation should find,
    its copy would make the same error, and so widen the tolerance. Versions that round intermediate
    results, which the base class describes, do not exist for a layer, since the operations within
    it cannot be rewritten.
    """

    def __init__(self, twin: Any) -> None:
        super().__init__(twin)

    def version(self, name: str) -> Any:
        if name not in self._made:
            twin: Any = self._made[PLAIN]
            if name != SHADOW or not type(twin.layer).__module__.startswith("torch."):
                raise NotImplementedError("a layer has no source to round in")
            narrow: Any = _LayerCopy(copy.deepcopy(twin.layer).float(), twin.device, _float32())
            self._made[name] = narrow
        return self._made[name]


def _float32() -> Any:
    return require("torch", "torch").float32
