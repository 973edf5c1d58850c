"""Run programs that take JAX's arrays, on the CPU, in the dtypes of the case."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from gpuemu_flow.model.errors import RunnerError
from gpuemu_flow.model.types import XLA_COMPILED, XLA_STEPWISE, Failure
from gpuemu_flow.numerics.gradients import cotangent, gradient_name
from gpuemu_flow.workers.api import Program, op_error
from gpuemu_flow.workers.arguments import ArgumentRecord
from gpuemu_flow.workers.callable import GradientCall, GradientRunner
from gpuemu_flow.workers.imports import load_function
from gpuemu_flow.workers.torch_runner import framework, with_arrays

_WIDE = (np.dtype(np.float64), np.dtype(np.complex128))


class JaxRunner(GradientRunner):
    """Calls a function with JAX's arrays. Inputs of 64 bits keep their dtype. New arrays have 32
    bits by default, as is usual in JAX, but 64 bits if an input is float64. Raises OpError:
    ``op-not-loadable``, ``framework-missing``, ``op-signature``."""

    def __init__(self, program: Program) -> None:
        os.environ["JAX_PLATFORMS"] = "cpu"
        try:
            self._jax: Any = framework("jax", "jax")
        except RunnerError as failed:
            raise op_error(failed) from None
        self._argument_changes: list[Failure] = []
        self._xla = program.argv[0] if program.argv else ""
        with self._bits(()):
            function = load_function(program)
        super().__init__(program, self._on_jax(function))

    def _on_jax(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            found: list[Any] = []

            def convert(array: np.ndarray) -> Any:
                with self._jax.enable_x64(True):  # else the values are cut to 32 bits
                    found.append(self._jax.numpy.array(array, copy=True))
                return found[-1]

            call = self._with_gradients
            given = [with_arrays(value, convert) for value in args]
            named = {name: with_arrays(value, convert) for name, value in kwargs.items()}
            with self._bits(found):
                result = None
                if call is None or call.wanted.plain:
                    compiled = self._xla == XLA_COMPILED
                    plain = self._compile(function, given, named) if compiled else function
                    record = ArgumentRecord(self._program, given, named)
                    result = self._jax.block_until_ready(plain(*given, **named))
                    self._argument_changes = record.failures()
                if call is not None:
                    arrays = call.named(args, kwargs)
                    if call.wanted.plain:
                        call.keep(self._plain(result, arrays))
                    call.draw_again()
                    self.hint = call.hint
                    taken = JaxGradients(self._jax, call, convert)

                    def outputs(filled: Mapping[str, Any]) -> dict[str, Any]:
                        given, named = call.replaced(args, kwargs, filled)
                        return self._values(function(*given, **named), filled)

                    tensors = {n: taken.argument(n, value) for n, value in arrays.items()}
                    call.took(*taken.of(outputs, tensors, compiled=self._xla == XLA_COMPILED))
                    self.hint = self._usual_hint
                return result

        return run

    def violations(self) -> list[Failure]:
        """Return a failure for each list or mapping of inputs that the latest call changed."""
        return self._argument_changes

    def _compile(
        self, function: Callable[..., Any], given: list[Any], named: dict[str, Any]
    ) -> Callable[..., Any]:
        """Return the function compiled by XLA; arguments that are no arrays become constants."""
        jax = self._jax
        leaves, tree = jax.tree_util.tree_flatten((given, named))
        traced = [isinstance(leaf, jax.Array) for leaf in leaves]
        rest = [None if is_array else leaf for leaf, is_array in zip(leaves, traced, strict=True)]

        def traced_call(arrays: list[Any]) -> Any:
            several = iter(arrays)
            filled = [
                next(several) if is_array else leaf
                for leaf, is_array in zip(rest, traced, strict=True)
            ]
            args, kwargs = jax.tree_util.tree_unflatten(tree, filled)
            return function(*args, **kwargs)

        compiled = jax.jit(traced_call)

        def call(*_: Any, **__: Any) -> Any:
            return compiled([x for x, is_array in zip(leaves, traced, strict=True) if is_array])

        return call

    @contextmanager
    def _bits(self, arrays: Any) -> Iterator[None]:
        """During the context, keep explicit 64-bit dtypes, which JAX by default reduces to 32 bits.
        If an input is float64, new arrays have 64 bits by default."""
        jax = self._jax
        with ExitStack() as stack:
            if self._xla == XLA_STEPWISE:
                stack.enter_context(jax.disable_jit())
            if any(array.dtype in _WIDE for array in arrays):
                stack.enter_context(jax.enable_x64(True))
            elif hasattr(jax.config, "jax_explicit_x64_dtypes"):
                stack.enter_context(_set(jax, "jax_explicit_x64_dtypes", "allow"))
            yield


@contextmanager
def _set(jax: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


# Call a JAX function once, and compute its vector-Jacobian product.


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
        """Convert an argument to JAX arrays. An array whose gradient is wanted is stored in this
        object, and a `_Leaf` takes its place."""
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
        """Return the outputs, and the gradients by name. Complex gradients follow the convention of
        PyTorch: they are the conjugates of JAX's."""
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
