"""Arithmetic of Triton's interpreter, corrected where it differs from a GPU's.

Comparisons give one bit, casts of floats to integers saturate, float8 is rounded to nearest even
and saturates, atomics add bfloat16, and ``tl.dot`` refuses the operands that tensor cores refuse.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import numpy_dtype, to_float32
from gpuemu_flow.runners.triton_cuda import Patch

_COMPARISONS = ("create_icmp", "create_fcmp")
_FLOAT8 = {"fp8e5": "float8_e5m2", "fp8e4nv": "float8_e4m3fn"}
_WORD = 16


class Arithmetic:
    """Replacements for methods of the interpreter's builder."""

    def __init__(self, interpreter: Any, dot_sizes: Callable[..., Any] | None = None) -> None:
        self._interpreter = interpreter
        self._builder = interpreter.interpreter_builder
        self._language = interpreter.tl
        self._handle = interpreter.TensorHandle
        self._dot_sizes = dot_sizes

    def patches(self) -> list[Patch]:
        """Return the replacements for attributes of the interpreter's builder."""
        builder = self._builder
        found: list[Patch] = [
            (builder, name, self._comparison(getattr(builder, name)))
            for name in dir(builder)
            if name.startswith(_COMPARISONS)
        ]
        names = ("create_fp_to_si", "create_fp_to_ui")
        found += [(builder, name, self._to_integer(getattr(builder, name))) for name in names]
        found += [
            (builder, "create_fp_to_fp", self._to_float(builder.create_fp_to_fp)),
            (builder, "create_atomic_rmw", self._atomic(builder.create_atomic_rmw)),
        ]
        options: Any = builder.options
        if hasattr(options, "sanitize_overflow"):
            quiet = dataclasses.replace(options, sanitize_overflow=False)
            found.append((builder, "options", quiet))  # overflow checks only cost time
        if self._dot_sizes is not None:
            functions = {**builder.codegen_fns, "min_dot_size": self._dot_sizes}
            found.append((builder, "codegen_fns", functions))
        return found

    def _comparison(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compare(left: Any, right: Any) -> Any:
            return self._handle(original(left, right).data, self._language.int1)

        return compare

    def _to_integer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def convert(source: Any, target: Any) -> Any:
            kind = target.scalar
            data = self._decoded(source)
            if kind == self._language.int1 or data is None:
                return original(source, target)
            # Narrow results are cut from those of a wider instruction.
            bits = max(kind.primitive_bitwidth, _WORD)
            wide = np.dtype(f"{'i' if kind.is_int_signed() else 'u'}{bits // 8}")
            result = saturated(data, wide).astype(self._interpreter._get_np_dtype(kind))
            return self._handle(result, kind)

        return convert

    def _decoded(self, source: Any) -> NDArray[Any] | None:
        if source.dtype.scalar == self._language.bfloat16:
            words = np.ascontiguousarray(source.data).reshape(source.data.shape)
            return to_float32(words.view(numpy_dtype("bfloat16")))
        data: NDArray[Any] = source.data
        return data if data.dtype.kind == "f" else None

    def _to_float(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def convert(source: Any, target: Any, rounding: Any) -> Any:
            name = _FLOAT8.get(target.scalar.name)
            data = self._decoded(source)
            if name is None or data is None or "RTZ" in str(rounding):
                return original(source, target, rounding)
            return self._handle(to_float8(data, name), target.scalar)

        return convert

    def _atomic(self, original: Callable[..., Any]) -> Callable[..., Any]:
        names = ("FADD",)
        kinds = {kind for name in names if (kind := self._operation(name)) is not None}

        def atomic(kind: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            if value.dtype.scalar != self._language.bfloat16 or kind not in kinds:
                return original(kind, pointers, value, mask, *rest)
            return self._added(pointers, value, mask)

        return atomic

    def _operation(self, name: str) -> Any:
        return getattr(self._interpreter._ir.ATOMIC_OP, name, None)

    def _added(self, pointers: Any, value: Any, mask: Any) -> Any:
        """Compute ``atomic_add`` of bfloat16 element by element, since addresses may repeat."""
        shape = value.data.shape
        places = np.broadcast_to(pointers.data, shape).reshape(-1)
        allowed = np.broadcast_to(mask.data, shape).reshape(-1)
        added = np.broadcast_to(self._decoded_words(value.data), shape).reshape(-1)
        before = np.zeros(len(places), np.uint16)
        kind = self._language.bfloat16
        pointer = pointers.dtype
        for i in np.flatnonzero(allowed):
            place, yes = self._handle(places[i : i + 1], pointer), np.ones(1, np.bool_)
            kept = self._handle(yes, self._language.int1)
            old = self._builder.create_masked_load(place, kept, None, None, False).data
            total = (self._decoded_words(old) + added[i : i + 1]).astype(numpy_dtype("bfloat16"))
            new = self._handle(total.view(np.uint16), kind)
            self._builder.create_masked_store(place, new, kept, None)
            before[i] = old[0]
        return self._handle(before.reshape(shape), kind)

    def _decoded_words(self, words: NDArray[Any]) -> NDArray[np.float32]:
        words = np.ascontiguousarray(words).reshape(words.shape)
        return to_float32(words.view(numpy_dtype("bfloat16")))


def saturated(data: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    """Convert floats to integers as a GPU does: saturated at the limits, and 0 for NaN."""
    info = np.iinfo(kind)
    wide = np.trunc(data.astype(np.float64))
    over, under = wide >= float(info.max), wide <= float(info.min)
    inside = np.where(over | under | np.isnan(wide), 0.0, wide).astype(kind)
    result = np.where(over, info.max, np.where(under, info.min, inside))
    return np.asarray(result).astype(kind)


def to_float8(data: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Convert to float8 bytes: round to nearest even, saturate at the largest finite value."""
    kind = numpy_dtype(name)
    largest = 448.0 if name == "float8_e4m3fn" else 57344.0
    limited = np.clip(data.astype(np.float32), -largest, largest)
    return np.asarray(limited).astype(kind).view(np.uint8)
