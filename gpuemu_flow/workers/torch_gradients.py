"""Call a PyTorch function with inputs that require gradients, and run the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from gpuemu_flow.model.types import LAYOUTS, Failure, FailureKind
from gpuemu_flow.numerics.contract import PARAMETERS, parameter_name
from gpuemu_flow.numerics.gradients import cotangent, gradient_name
from gpuemu_flow.numerics.layouts import describe, place
from gpuemu_flow.workers.callable import GradientCall


class TorchGradients:
    """Makes tensors that require gradients from a call's arguments, and computes the gradients."""

    def __init__(
        self,
        torch: Any,
        call: GradientCall,
        mutates: tuple[str, ...],
        to_tensor: Callable[[np.ndarray], Any],
    ) -> None:
        self._torch = torch
        self._call = call
        self._wanted = call.wanted
        self._inputs = call.inputs
        self._names = {id(array): name for name, array in call.inputs.items()}
        self._mutates = mutates
        self._to_tensor = to_tensor
        self._leaves: dict[str, Any] = {}
        self.changed: list[Failure] = []

    def argument(self, name: str, value: Any) -> Any:
        """Convert an argument's arrays to tensors, which require gradients where requested."""
        if isinstance(value, np.ndarray):
            return self._tensor(name, value)
        if isinstance(value, list):
            return [self.argument(name, member) for member in value]
        return value

    def _tensor(self, argument: str, array: np.ndarray) -> Any:
        tensor = self._to_tensor(array)
        changes = argument in self._mutates
        if changes:
            tensor = tensor.clone()
        name = self._names.get(id(array), argument)  # complex numbers are joined of two inputs
        if name not in self._wanted.inputs:
            return tensor
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor
        leaf = self._leaves[name] = tensor.detach().requires_grad_()
        # PyTorch does not allow in-place changes of a leaf.
        return leaf.clone() if changes else leaf

    def add_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Compute the requested gradients of a module's parameters, too. Parameters that the module
        froze during the call are left out."""
        wanted = self._wanted.inputs
        named = {parameter_name(n): w for n, w in parameters.items() if w.requires_grad}
        self._leaves |= {n: w for n, w in named.items() if PARAMETERS in wanted or n in wanted}

    def of(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the backward pass, and return the gradients by name. A gradient that the backward
        pass does not compute is a tensor of zeros."""
        torch = self._torch
        sent = {
            name: value
            for name, value in outputs.items()
            if name not in self._wanted.apart
            and isinstance(value, torch.Tensor)
            and value.requires_grad
        }
        leaves = list(self._leaves.values())
        found: tuple[Any, ...] = (None,) * len(leaves)
        if sent and leaves:
            laid = [self._cotangent(name, value) for name, value in sent.items()]
            given = [cotangent.tensor for cotangent in laid]
            found = torch.autograd.grad(list(sent.values()), leaves, given, allow_unused=True)
            self.changed = [f for cotangent in laid for f in cotangent.failures(torch)]
        self._call.demand_parameters(self._leaves)
        if leaves:
            self._call.demand(arrives=any(gradient is not None for gradient in found))
        return {
            gradient_name(name): torch.zeros_like(leaf.detach()) if gradient is None else gradient
            for (name, leaf), gradient in zip(self._leaves.items(), found, strict=True)
        }

    def _cotangent(self, name: str, value: Any) -> LaidCotangent:
        shape = tuple(value.shape)
        steps = cotangent(name, shape, self._wanted.masks.get(name), self._inputs)
        values = steps * (1.0 - 0.5j) if value.is_complex() else steps.copy()
        tensor = self._torch.from_numpy(values).to(value.device, value.dtype)
        # The reference is differentiated by PyTorch, which does without another layout.
        layout = layout_of_case(self._inputs.values()) if self._wanted.plain else "contiguous"
        return LaidCotangent.of(self._torch, name, tensor, layout)


# Lay out the cotangents of a backward pass of PyTorch in memory, and detect writes to them.


_UNLIKE_C_ORDER = [name for name in LAYOUTS if name not in ("contiguous", "offset", "expanded")]


def layout_of_case(arrays: Iterable[np.ndarray]) -> str:
    """Return the layout of the first input that is not in C order, else ``contiguous``."""
    for array in arrays:
        strides = tuple(step // array.itemsize for step in array.strides)
        if array.flags.c_contiguous:
            continue
        for layout in _UNLIKE_C_ORDER:
            if describe(layout, array.shape) == strides:
                return layout
    return "contiguous"


class LaidCotangent(Struct, frozen=True):
    """The cotangent of one output, in some layout; the memory around its elements is NaN."""

    name: str
    tensor: Any
    memory: Any
    before: Any

    @classmethod
    def of(cls, torch: Any, name: str, values: Any, layout: str) -> LaidCotangent:
        """Make a cotangent that holds `values` in a layout."""
        shape = tuple(values.shape)
        where = place(layout, shape, 1)
        nan, device = float("nan"), values.device
        memory = torch.full((where.nbytes,), nan, dtype=values.dtype, device=device)
        tensor = memory.as_strided(shape, describe(layout, shape), where.offset)
        tensor.copy_(values)
        return cls(name, tensor, memory, memory.clone())

    def failures(self, torch: Any) -> list[Failure]:
        """Return a failure if the backward pass wrote to `memory`, else an empty list."""
        if torch.equal(self.memory.view(torch.uint8), self.before.view(torch.uint8)):
            return []
        message = (
            f"the backward pass wrote to the gradient of {self.name!r} that it was given, which "
            "other backward passes read, too"
        )
        return [Failure(FailureKind.INPUT_MODIFIED, message, self.name)]
