"""Call a PyTorch function with inputs that require gradients, and run the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuemu_flow.numerics.contract import PARAMETERS, parameter_name
from gpuemu_flow.numerics.gradients import cotangent, gradient_name
from gpuemu_flow.runners.gradient_calls import GradientCall
from gpuemu_flow.runners.torch_cotangents import LaidCotangent, layout_of_case
from gpuemu_flow.types import Failure


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
        """Compute the requested gradients of a module's parameters, too.

        Parameters that the module froze during the call are left out.
        """
        wanted = self._wanted.inputs
        named = {parameter_name(n): w for n, w in parameters.items() if w.requires_grad}
        self._leaves |= {n: w for n, w in named.items() if PARAMETERS in wanted or n in wanted}

    def of(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the backward pass, and return the gradients by name.

        A gradient that the backward pass does not compute is a tensor of zeros.
        """
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
        tensor = self._torch.from_numpy(values).to(value.dtype)
        # The reference is differentiated by PyTorch, which does without another layout.
        layout = layout_of_case(self._inputs.values()) if self._wanted.plain else "contiguous"
        return LaidCotangent.of(self._torch, name, tensor, layout)
