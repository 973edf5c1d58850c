"""The adapter for JAX: arrays and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpuemu_flow.client.arrays import as_array
from gpuemu_flow.frameworks.base import (
    Array,
    Arrays,
    FrameworkAdapter,
    Inputs,
    caller,
    named,
    outputs_of,
)
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, numpy_dtype


class JAXAdapter(FrameworkAdapter):
    """Adapter for JAX; it enables float64 for its own computations only."""

    name = package = extra = "jax"

    @contextmanager
    def wide(self) -> Iterator[None]:
        """Enable 64-bit types inside the context, for checks in float64."""
        jax = self.module
        before = bool(jax.config.jax_enable_x64)
        jax.config.update("jax_enable_x64", True)
        try:
            yield
        finally:
            jax.config.update("jax_enable_x64", before)

    def to_numpy(self, tensor: Any) -> Array:
        """Return an array on the CPU; see `FrameworkAdapter.to_numpy`."""
        return as_array(tensor, "tensor")

    def from_numpy(self, array: Array, like: Any = None) -> Any:
        """Copy an array to a tensor; see `FrameworkAdapter.from_numpy`."""
        made = self.module.numpy.array(np.asarray(array))
        if like is None:
            return made
        return made.astype(numpy_dtype(like) if isinstance(like, str) else like.dtype)

    def get_dtype_name(self, tensor: Any) -> str:
        """Return the canonical name of a tensor's dtype; see `FrameworkAdapter.get_dtype_name`."""
        return str(tensor.dtype)

    def requires_grad(self, tensor: Any, requires: bool | None = None) -> Any:
        """Tell whether JAX can differentiate with respect to a tensor: its dtype must be float.

        If `requires` is given, return the tensor unchanged: JAX has no such setting.
        """
        if requires is not None:
            return tensor
        return dtype_name(np.asarray(tensor).dtype) in FLOAT_LIMITS

    def compute_gradient(
        self, function: Callable[..., Any], inputs: Inputs, argnums: Any = None
    ) -> Any:
        """Return the gradients of the sum of all elements of all outputs.

        Parameters
        ----------
        argnums : int or sequence of int, optional
            Positions of the inputs to differentiate with respect to; by default, those of all
            inputs with a float dtype.

        Returns
        -------
        mapping or list
            A mapping by input name if `inputs` is a mapping, else a list in the order of `argnums`.
        """
        jax = self.module
        values = named(inputs)
        names = [name for name, value in values.items() if self.requires_grad(value)]
        if argnums is not None:
            wanted = [argnums] if isinstance(argnums, int) else list(argnums)
            names = [list(values)[place] for place in wanted]
        run = caller(function, inputs)

        def total(chosen: Mapping[str, Any]) -> Any:
            return sum(jax.numpy.sum(o) for o in outputs_of(run({**values, **chosen})))

        found = jax.grad(total)({name: values[name] for name in names})
        return found if isinstance(inputs, Mapping) else [found[name] for name in names]

    def pullback(
        self, function: Callable[[Mapping[str, Any]], Any], arrays: Arrays, names: Sequence[str]
    ) -> tuple[list[Array], Callable[[list[Array]], dict[str, Array]]]:
        """Return outputs and a function that gives gradients; see `FrameworkAdapter.pullback`."""
        jax = self.module
        with self.wide():
            tensors = {name: self.from_numpy(array) for name, array in arrays.items()}
            outputs, back = jax.vjp(
                lambda chosen: outputs_of(function({**tensors, **chosen})),
                {name: tensors[name] for name in names},
            )

        def pull(cotangents: list[Array]) -> dict[str, Array]:
            with self.wide():
                given = [
                    self.from_numpy(c).astype(o.dtype)
                    for o, c in zip(outputs, cotangents, strict=True)
                ]
                (found,) = back(given)
                return {name: self.to_numpy(found[name]) for name in names}

        return [self.to_numpy(output) for output in outputs], pull

    def evaluate(self, function: Callable[[Mapping[str, Any]], Any], arrays: Arrays) -> list[Array]:
        """Return the outputs of a function as arrays; see `FrameworkAdapter.evaluate`."""
        with self.wide():
            return super().evaluate(function, arrays)


ADAPTER = JAXAdapter()
