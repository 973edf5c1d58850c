"""Rounding of a shadow's intermediate values: operands of matrix products, or every step.

Tensor cores take their operands in the narrow type and add in float32. If a kernel computes in
float32 between two products, it must therefore round the operands of the second product. This is no
error. The source of a *rounded* shadow (see `shadow`) calls `rounded` for each value to be rounded.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.model.types import PRECISIONS
from gpuemu_flow.numerics.dtypes import (
    FLOAT_LIMITS,
    Float64Array,
    FloatLimits,
    numpy_dtype,
    spacing,
)
from gpuemu_flow.numerics.rng import SeededRng

TENSOR_CORE, FLOAT32, INPUT = PRECISIONS


class Rounding(Struct, frozen=True):
    """The rounding of a shadow."""

    dtype: str  # canonical name of the narrow float type
    steps: bool = False  # true to round every step, not only the operands of matrix products
    # Seed of a random factor that values are multiplied by before they are rounded, and divided by
    # afterwards; None rounds the values themselves
    seed: int | None = None
    # True if values beyond the type's largest value become infinite, or NaN in a type without
    # infinities
    overflow: bool = False

    def drawn(self, seed: int) -> Rounding:
        """Return the same rounding with another seed."""
        return replace(self, seed=seed)

    def overflowing(self) -> Rounding:
        """Return the same rounding with `overflow` set."""
        return replace(self, overflow=True)


def rounding_for(precision: str, dtype: str) -> Rounding | None:
    """Return the rounding that a precision allows for ops on `dtype`; None if it allows none."""
    fmt = FLOAT_LIMITS.get(dtype)
    if precision == FLOAT32 or fmt is None or fmt.eps <= FLOAT_LIMITS["float32"].eps:
        return None
    return Rounding(dtype, steps=precision == INPUT)


class _State(Struct):
    fmt: FloatLimits
    rng: SeededRng | None
    overflow: bool

    def of(self, values: Float64Array) -> Float64Array:
        result = round_to(values, self.fmt, self.rng)
        if not self.overflow:
            return result
        beyond = np.copysign(np.inf if self.fmt.has_inf else np.nan, values)
        return np.where(np.abs(values) > self.fmt.max, beyond, result)


_state: _State | None = None


@contextmanager
def rounding_to(rounding: Rounding | None) -> Iterator[None]:
    """Inside the context, set the rounding that `rounded` applies; None leaves values unchanged."""
    global _state  # noqa: PLW0603 - rewritten source reaches the setting by this module's name only
    before = _state
    if rounding is None:
        _state = None
    else:
        rng = None if rounding.seed is None else SeededRng(rounding.seed)
        _state = _State(FLOAT_LIMITS[rounding.dtype], rng, rounding.overflow)
    try:
        yield
    finally:
        _state = before


def rounded(value: Any) -> Any:
    """Round float32 and float64 arrays and tensors, also inside lists; return others unchanged."""
    if _state is None:
        return value
    if isinstance(value, (np.ndarray, np.floating)):
        return _rounded_numpy(value, _state)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(map(rounded, value))
    library = type(value).__module__.partition(".")[0]
    if library == "torch" and hasattr(value, "detach"):
        return _rounded_torch(value, _state)
    if library in ("jax", "jaxlib") and hasattr(value, "astype"):
        return _rounded_jax(value, _state)
    return value


def _rounded_numpy(value: Any, state: _State) -> Any:
    if value.dtype not in (np.float32, np.float64):
        return value
    wide = np.asarray(value, np.float64)
    result = state.of(wide)
    if np.array_equal(result, wide, equal_nan=True):
        return value
    narrow = result.astype(value.dtype)
    return narrow.view(type(value)) if isinstance(value, np.ndarray) else narrow[()]


def _rounded_torch(tensor: Any, state: _State) -> Any:
    torch = sys.modules["torch"]
    if tensor.dtype not in (torch.float32, torch.float64):
        return tensor
    if tensor.requires_grad and torch.is_grad_enabled():
        return _rounding_both_ways(torch).apply(tensor)
    wide = tensor.detach().cpu().to(torch.float64).numpy()
    result = state.of(wide)
    if np.array_equal(result, wide, equal_nan=True):
        return tensor
    return torch.from_numpy(np.ascontiguousarray(result)).to(tensor.dtype).to(tensor.device)


@functools.cache
def _rounding_both_ways(torch: Any) -> Any:
    """Make a torch function that rounds a tensor and, in the backward pass, the gradient. An op
    that computes this step in a narrow dtype rounds both."""

    class Rounding(torch.autograd.Function):  # type: ignore[misc]  # torch is Any
        @staticmethod
        def forward(_: Any, tensor: Any) -> Any:
            result = rounded(tensor.detach())
            return result.clone() if result is tensor else result

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            return rounded(gradient)

    return Rounding


def _rounded_jax(array: Any, state: _State) -> Any:
    """Return a JAX array rounded to nearest, by operations that JAX can trace."""
    if str(array.dtype) not in ("float32", "float64"):
        return array
    return array.astype(numpy_dtype(state.fmt.name)).astype(array.dtype)


def round_to(values: Float64Array, fmt: FloatLimits, rng: SeededRng | None = None) -> Float64Array:
    """Round values to a narrow float format, without its upper limit on exponents. A correct op may
    round a multiple of the reference's value, such as probabilities before they are divided by
    their sum. With `rng`, all values are multiplied by one random factor between 1 and 2, rounded,
    and divided by the factor. This gives another sample of rounding errors of the same size. Values
    that the format holds exactly, such as inputs, stay as they are."""
    with np.errstate(all="ignore"):
        result = _to_nearest(values, fmt)
        if rng is not None:
            factor = 1.0 + float(rng.f64(1)[0])
            result = np.where(result == values, values, _to_nearest(values * factor, fmt) / factor)
        return np.where(np.isfinite(values), result, values)


def _to_nearest(values: Float64Array, fmt: FloatLimits) -> Float64Array:
    units = spacing(values, fmt)
    result: Float64Array = np.rint(values / units) * units
    return result
