"""CUDA's mathematical library for Triton's interpreter, which has none."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.runners.triton_cuda import Patch

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
