"""Call a JAX function once, and compute its vector-Jacobian product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuemu_flow.numerics.gradients import cotangent, gradient_name
from gpuemu_flow.runners.gradient_calls import GradientCall

_Outputs = Callable[[Mapping[str, Any]], dict[str, Any]]


class JaxGradients:
    """Computes the outputs of one call, and the gradients that the call asks for."""

    def __init__(self, jax: Any, call: GradientCall, to_array: Callable[[np.ndarray], Any]) -> None:
        self._jax = jax
        self._call = call
        self._names = {id(array): name for name, array in call.inputs.items()}
        self._to_array = to_array
        self._leaves: dict[str, Any] = {}

    def argument(self, name: str, value: Any) -> Any:
        """Convert an argument to JAX arrays.

        An array whose gradient is wanted is stored in this object, and a `_Leaf` takes its place.
        """
        if isinstance(value, list):
            return [self.argument(name, member) for member in value]
        if not isinstance(value, np.ndarray):
            return value
        array = self._to_array(value)
        known = self._names.get(id(value), name)  # complex numbers are joined of two inputs
        if known not in self._call.wanted.inputs or not self._is_inexact(array):
            return array
        self._leaves[known] = array
        return _Leaf(known)

    def _is_inexact(self, value: Any) -> bool:
        numpy = self._jax.numpy
        return bool(numpy.issubdtype(numpy.result_type(value), numpy.inexact))

    def of(
        self, outputs: _Outputs, arguments: Mapping[str, Any], *, compiled: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the outputs, and the gradients by name.

        Complex gradients follow the convention of PyTorch: they are the conjugates of JAX's.
        """
        jax = self._jax

        def split(leaves: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
            filled = {name: _filled(value, leaves) for name, value in arguments.items()}
            given = {n: jax.numpy.asarray(v) for n, v in outputs(filled).items()}
            sent = {n: v for n, v in given.items() if self._sends(n, v)}
            return sent, {n: v for n, v in given.items() if n not in sent}

        function = jax.jit(split) if compiled else split
        sent, pull, rest = jax.vjp(function, self._leaves, has_aux=True)
        if self._leaves:
            self._call.demand(arrives=bool(sent))
        (found,) = pull({name: self._cotangent(name, value) for name, value in sent.items()})
        gradients = {gradient_name(n): jax.numpy.conj(array) for n, array in found.items()}
        return {**sent, **rest}, jax.block_until_ready(gradients)

    def _sends(self, name: str, value: Any) -> bool:
        return name not in self._call.wanted.apart and self._is_inexact(value)

    def _cotangent(self, name: str, value: Any) -> Any:
        wanted, numpy = self._call.wanted, self._jax.numpy
        steps = cotangent(name, value.shape, wanted.masks.get(name), self._call.inputs)
        complex_valued = numpy.issubdtype(value.dtype, numpy.complexfloating)
        # The conjugate of PyTorch's.
        values = steps * (1.0 + 0.5j) if complex_valued else steps
        return numpy.asarray(values, dtype=value.dtype)


class _Leaf:
    """Placeholder, in the arguments, for an array whose gradient is wanted."""

    def __init__(self, name: str) -> None:
        self.name = name


def _filled(value: Any, leaves: Mapping[str, Any]) -> Any:
    if isinstance(value, _Leaf):
        return leaves[value.name]
    return [_filled(member, leaves) for member in value] if isinstance(value, list) else value
