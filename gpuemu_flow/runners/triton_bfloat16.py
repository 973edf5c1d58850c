"""bfloat16 in Triton's interpreter, computed as float32 and rounded to nearest even.

The interpreter (as of Triton 3.9) keeps bfloat16 as 16-bit integers: it adds and multiplies their
bit patterns, and cuts bits off where a GPU rounds. Here each such operation is done in float32 and
its result rounded, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import numpy_dtype, to_float32
from gpuemu_flow.runners.triton_cuda import Patch

_OPERATIONS = ("binary_op", "unary_op", "ternary_op", "create_fma", "create_rsqrt", "create_erf")


class Bfloat16:
    """Replacements for the methods of the interpreter's builder that handle bfloat16."""

    def __init__(self, interpreter: Any) -> None:
        self._handle = interpreter.TensorHandle
        self._builder = interpreter.interpreter_builder
        self._language = interpreter.tl
        self._reductions = (interpreter.ReduceOps, interpreter.ScanOps)
        self._float32 = interpreter.tl.float32
        self._bfloat16 = interpreter.tl.bfloat16

    def patches(self) -> list[Patch]:
        """Return patches for methods of the interpreter's builder, its reductions and its scans."""
        made: dict[str, Callable[..., Any]] = {
            "cast_impl": self._cast(self._builder.cast_impl),
            "create_fp_to_fp": self._convert(self._builder.create_fp_to_fp),
            "create_dot": self._dot(self._builder.create_dot),
            "get_bf16": lambda value: self._encoded(np.array([value], np.float32)),
        }
        for name in _OPERATIONS:
            made[name] = self._operation(getattr(self._builder, name))
        reduced: list[Patch] = [
            (owner, "apply_impl", self._reduction(owner.apply_impl)) for owner in self._reductions
        ]
        return [*((self._builder, name, method) for name, method in made.items()), *reduced]

    def _is(self, value: Any) -> bool:
        return isinstance(value, self._handle) and value.dtype.scalar == self._bfloat16

    def _decoded(self, value: Any) -> Any:
        if not self._is(value):
            return value
        words = np.ascontiguousarray(value.data).reshape(value.data.shape)
        return self._handle(to_float32(words.view(numpy_dtype("bfloat16"))), self._float32)

    def _encoded(self, data: NDArray[Any]) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = data.astype(numpy_dtype("bfloat16"))
        return self._handle(rounded.view(np.uint16), self._bfloat16)

    def _cast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def cast(source: Any, target: Any) -> Any:
            value = self._decoded(source)
            if target.scalar == self._bfloat16:
                return source if value is not source else self._encoded(value.data)
            return original(value, target)

        return cast

    def _convert(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def convert(source: Any, target: Any, rounding: Any) -> Any:
            wide = source.dtype.scalar.primitive_bitwidth > 8
            wide = wide and target.scalar.primitive_bitwidth > 8
            concerned = self._is(source) or target.scalar == self._bfloat16
            if wide and concerned and "RTZ" not in str(rounding):
                return self._builder.cast_impl(source, target)
            return original(source, target, rounding)

        return convert

    def _dot(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def dot(a: Any, b: Any, *rest: Any) -> Any:
            return original(self._decoded(a), self._decoded(b), *rest)

        return dot

    def _operation(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any) -> Any:
            if np.where in args or not any(map(self._is, args)):
                return original(*args)
            result = original(*map(self._decoded, args))
            if result.data.dtype != np.float32:  # a comparison
                return result
            return self._encoded(result.data)

        return operation

    def _reduction(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(owner: Any, values: Any) -> Any:
            concerned = [self._is(value.handle) for value in values]
            if not any(concerned):
                return original(owner, values)
            wide = tuple(self._like(value, self._decoded(value.handle)) for value in values)
            returned = original(owner, wide)
            if isinstance(returned, tuple):
                return tuple(map(self._narrowed, returned, concerned))
            return self._narrowed(returned, concerned[0])

        return apply

    def _narrowed(self, value: Any, concerned: bool) -> Any:
        if not concerned or value.handle.data.dtype != np.float32:
            return value
        return self._like(value, self._encoded(value.handle.data))

    def _like(self, value: Any, handle: Any) -> Any:
        """Return a tensor on the data of `handle`, with the shape of `value`."""
        scalar = handle.dtype.scalar
        shape = value.type.get_block_shapes() if value.type.is_block() else None
        kind = scalar if shape is None else self._language.block_type(scalar, shape)
        return self._language.tensor(handle, kind)
