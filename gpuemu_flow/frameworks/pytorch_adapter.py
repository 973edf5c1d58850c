"""The adapter for PyTorch: tensors and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuemu_flow.client.arrays import as_array
from gpuemu_flow.frameworks.base import (
    Array,
    Arrays,
    FrameworkAdapter,
    caller,
    named,
    outputs_of,
)
from gpuemu_flow.numerics.dtypes import ML_DTYPES_NAMES, dtype_name, numpy_dtype
from gpuemu_flow.types import DTYPES


class PyTorchAdapter(FrameworkAdapter):
    """Adapter for PyTorch."""

    mutable = True
    name = "pytorch"
    package = extra = "torch"

    def to_numpy(self, tensor: Any) -> Array:
        """Return an array on the CPU; see `FrameworkAdapter.to_numpy`."""
        return as_array(tensor, "tensor")

    def from_numpy(self, array: Array, like: Any = None) -> Any:
        """Copy an array to a tensor; see `FrameworkAdapter.from_numpy`."""
        torch = self.module
        # A copy of its own, since torch warns of memory that cannot be written to.
        copied = np.array(array, order="K")
        name = dtype_name(copied.dtype)
        if name in ML_DTYPES_NAMES:
            words = copied.view(np.uint8 if DTYPES[name].itemsize == 1 else np.int16)
            tensor = torch.from_numpy(words).view(getattr(torch, name))
        else:
            tensor = torch.from_numpy(copied)
        if isinstance(like, str):
            return tensor.to(getattr(torch, numpy_dtype(like).name))
        return tensor if like is None else tensor.to(device=like.device, dtype=like.dtype)

    def get_dtype_name(self, tensor: Any) -> str:
        """Return the canonical name of a tensor's dtype; see `FrameworkAdapter.get_dtype_name`."""
        return str(getattr(tensor, "dtype", type(tensor).__name__)).removeprefix("torch.")

    def requires_grad(self, tensor: Any, requires: bool | None = None) -> Any:
        """Tell or set whether a tensor requires gradients; see `FrameworkAdapter.requires_grad`."""
        if requires is not None:
            return tensor.requires_grad_(requires)
        return bool(tensor.requires_grad)

    def compute_gradient(
        self, output: Any, inputs: Any, grad_output: Any = None, output_index: int = 0
    ) -> Any:
        """Return an output's gradients for the inputs that require gradients.

        The result is a dict by input name if `inputs` is a mapping, else a list. A gradient is None
        if the output does not depend on the input. If the output requires no gradient, the result
        is empty.

        Parameters
        ----------
        output : tensor or callable
            The output; or a function, which is called with `inputs` to get its outputs.
        inputs : tensor, sequence or mapping
        grad_output : tensor, optional
            The output's cotangent; ones by default. If `output` is a function, an int in this place
            is taken as `output_index`.
        output_index : int
            Number of the output to use if `output` is a function.
        """
        torch = self.module
        if callable(output) and not isinstance(output, torch.Tensor):
            if isinstance(grad_output, int):
                output_index, grad_output = grad_output, None
            output = outputs_of(caller(output, inputs)(named(inputs)))[output_index]
        wanted = {n: t for n, t in named(inputs).items() if getattr(t, "requires_grad", False)}
        cotangent = torch.ones_like(output) if grad_output is None else grad_output
        gradients: Sequence[Any] = ()
        if wanted and output.requires_grad:
            gradients = torch.autograd.grad(
                output, list(wanted.values()), cotangent, retain_graph=True, allow_unused=True
            )
        if not isinstance(inputs, Mapping):
            return list(gradients)
        return dict(zip(wanted, gradients, strict=bool(gradients)))

    def pullback(
        self, function: Callable[[Mapping[str, Any]], Any], arrays: Arrays, names: Sequence[str]
    ) -> tuple[list[Array], Callable[[list[Array]], dict[str, Array]]]:
        """Return outputs and a function that gives gradients; see `FrameworkAdapter.pullback`."""
        tensors = {name: self.from_numpy(array) for name, array in arrays.items()}
        leaves = [tensors[name].requires_grad_(True) for name in names]
        outputs = outputs_of(function(tensors))

        def pull(cotangents: list[Array]) -> dict[str, Array]:
            found = self.pull(outputs, leaves, cotangents)
            return dict(zip(names, found, strict=True))

        return [self.to_numpy(output) for output in outputs], pull

    def pull(
        self, outputs: Sequence[Any], inputs: Sequence[Any], cotangents: Sequence[Array]
    ) -> list[Array]:
        """Return the gradient with respect to each input.

        It is the gradient of the sum of all outputs, each multiplied by its cotangent. For an input
        on which no output depends, it is 0.
        """
        torch = self.module
        differentiable = [
            (output, self.from_numpy(cotangent, output))
            for output, cotangent in zip(outputs, cotangents, strict=True)
            if output.requires_grad
        ]
        found: Sequence[Any] = [None] * len(inputs)
        if differentiable:
            found = torch.autograd.grad(
                [output for output, _ in differentiable],
                list(inputs),
                [cotangent for _, cotangent in differentiable],
                retain_graph=True,
                allow_unused=True,
            )
        return [
            np.zeros(tuple(tensor.shape)) if gradient is None else self.to_numpy(gradient)
            for tensor, gradient in zip(inputs, found, strict=True)
        ]


ADAPTER = PyTorchAdapter()
