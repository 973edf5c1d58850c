"""Arithmetic of Triton's interpreter, corrected where it differs from a GPU's.

Comparisons give one bit, casts of floats to integers saturate, float8 is rounded to nearest even
and saturates, atomics add bfloat16, and ``tl.dot`` refuses the operands that tensor cores refuse.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.emulator.host.torch_cuda import Patch
from gpuemu_flow.numerics.dtypes import numpy_dtype, to_float32

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


# bfloat16 in Triton's interpreter, computed as float32 and rounded to nearest even.


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


# CUDA's mathematical library for Triton's interpreter, which has none.


_BUILTIN = "__triton_builtin__"
MODULES = ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice")
_SAME_NAME = (
    "floor", "ceil", "trunc", "exp2", "sqrt", "rint", "copysign", "nextafter", "sin", "cos",
    "tan", "log2", "exp", "cosh", "sinh", "tanh", "log", "log10", "log1p", "expm1", "hypot",
    "cbrt", "fmod", "isnan", "isinf", "signbit",
)  # fmt: skip


def _each(function: Callable[[float], float]) -> Callable[[Any], Any]:
    return np.vectorize(function, otypes=[np.float64])


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in _SAME_NAME},
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "add_rn": np.add,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "div_rn": np.divide,
    "erf": _each(math.erf),
    "erfc": _each(math.erfc),
    "exp10": lambda x: np.power(10.0, x),
    "fast_cosf": np.cos,
    "fast_dividef": np.divide,
    "fast_expf": np.exp,
    "fast_log2f": np.log2,
    "fast_logf": np.log,
    "fast_powf": np.power,
    "fast_sinf": np.sin,
    "fast_tanhf": np.tanh,
    "finitef": np.isfinite,
    "fma": lambda x, y, z: x.astype(np.float64) * y + z,
    "isfinited": np.isfinite,
    "lgamma": _each(lambda x: math.lgamma(x) if x > 0 or x % 1 else math.inf),
    "mul_rn": np.multiply,
    "nearbyint": np.rint,
    "normcdf": _each(lambda x: 0.5 * math.erfc(-x / math.sqrt(2))),
    "pow": np.power,
    "rcp_rn": np.reciprocal,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rsqrt_rn": lambda x: 1 / np.sqrt(x),
    "sqrt_rn": np.sqrt,
    "sub_rn": np.subtract,
}
"""Functions that a kernel may call as ``libdevice.NAME``, in float32 and float64 as on a GPU."""


class Libdevice:
    """The library's functions as functions of the interpreter's tensors."""

    def __init__(self, interpreter: Any) -> None:
        self._language = interpreter.tl
        self._handle = interpreter.TensorHandle

    def patches(self) -> list[Patch]:
        """Return the replacements for the functions of Triton's own libdevice modules."""
        found: list[Patch] = []
        for name in MODULES:
            try:
                module = importlib.import_module(name)
            except ImportError:  # the module's name in another version
                continue
            found += [(module, n, self._stand_in(n)) for n in _public(module)]
        return found

    def _stand_in(self, name: str) -> Callable[..., Any]:
        function = FUNCTIONS.get(name)

        def call(*args: Any, _semantic: Any = None, _builder: Any = None) -> Any:
            if function is None:
                raise NotImplementedError(f"libdevice.{name} cannot be interpreted on the CPU")
            return self._apply(name, function, [self._data(name, value) for value in args], args)

        call.__name__ = call.__qualname__ = name
        call.__dict__[_BUILTIN] = True  # Triton meets it when it computes a kernel's key
        return call

    def _data(self, name: str, value: Any) -> NDArray[Any]:
        if not isinstance(value, self._language.tensor):
            return np.asarray(getattr(value, "value", value), np.float32)
        if value.dtype not in (self._language.float32, self._language.float64):
            message = f"libdevice.{name} takes fp32 or fp64, as on a GPU, and not {value.dtype}"
            raise TypeError(message)
        data: NDArray[Any] = value.handle.data
        return data

    def _apply(
        self, name: str, function: Callable[..., Any], data: list[NDArray[Any]], args: Any
    ) -> Any:
        wide = max((array.dtype for array in data), key=lambda dtype: dtype.itemsize)
        with np.errstate(all="ignore"):
            result = np.asarray(function(*data))
        language = self._language
        if result.dtype == np.bool_:
            scalar = language.int1
        else:
            result = result.astype(wide)
            scalar = language.float64 if wide == np.float64 else language.float32
        blocks = [v for v in args if isinstance(v, language.tensor) and v.type.is_block()]
        kind = language.block_type(scalar, list(result.shape)) if blocks else scalar
        return language.tensor(self._handle(result, scalar), kind)


def _public(module: ModuleType) -> list[str]:
    return [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
