"""Arithmetic with each rounding perturbed at random, to show the effect of reordered operations.

Perturbed inputs do not show errors of intermediate results: where equal results cancel, the
reference may return exactly 0, whereas a correct op, which adds in another order, returns a
rounding error of the cancelled terms. Perturbing each result by about its rounding error shows the
error of the op (Vignes, "A stochastic arithmetic for reliable scientific computation", 1993;
Parker, "Monte Carlo Arithmetic", 1997).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.inexact import without_lost
from gpuemu_flow.numerics.perturb import FLOAT32_SMALLEST_NORMAL, Arrays
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.single import (
    PRODUCTS,
    Single,
    bare,
    float32_quotient,
    operands_in_float32,
    options_in_float32,
    wrapped,
)

_STEPS = (np.rint, np.floor, np.ceil, np.trunc, np.floor_divide)


class Noisy(Single):
    """A float32 array on which numpy perturbs each float32 result that is not exact."""

    rng: SeededRng
    unit: float

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        if method == "at" or ufunc.nout > 1 or options.get("where", True) is not True:
            return super().__array_ufunc__(ufunc, method, *inputs, out=out, **options)
        call = getattr(ufunc, method)
        plain = operands_in_float32(ufunc, method, inputs)
        options = options_in_float32(options)
        result = call(*plain, **options)
        if getattr(result, "dtype", None) == np.float32:
            wide = list(map(widened, plain))
            exact = call(*wide, **{k: widened(v) for k, v in options.items()})
            exact = without_lost(ufunc, method, wide, options, exact)
            if self._sums(ufunc, method) and not np.array_equal(result, exact, equal_nan=True):
                # In another order, each partial sum is rounded differently.
                terms = np.asarray(plain[0], np.float32)
                again = call(bare(self._moved(terms)), *plain[1:], **options)
                result = self._moved_sum(result, again, exact)
            else:
                result = self._moved(result, exact)
        return self._into(out, result, "unsafe")

    def _sums(self, ufunc: np.ufunc, method: str) -> bool:
        """Tell whether an operation computes sums whose terms must be perturbed as well."""
        return ufunc in (np.add, np.subtract) and method != "__call__"

    def _moved_sum(self, plain: Any, again: Any, exact: Any) -> Any:
        """Return the perturbed result of a sum.

        `plain` is the sum as it was computed, `again` is the sum of perturbed terms, and `exact` is
        the sum without rounding: elements that are equal to it stay unchanged.
        """
        return self._moved(again, exact)

    def _product(self, result: Any) -> Any:
        if getattr(result, "dtype", None) != np.float32:
            return result
        return self._moved(bare(result))

    def _moved(self, values: Any, exact: Any = None) -> NDArray[Any]:
        """Multiply the values that are not exact by random factors.

        The factors lie within 1 ± `unit`. A value that equals its `exact` result is returned
        unchanged. If `exact` is None, all values are multiplied.
        """
        plain = np.asarray(values)
        deltas = (2.0 * self.rng.f64(plain.size) - 1.0).reshape(plain.shape) * self.unit
        with np.errstate(all="ignore"):
            moved = (plain * (1.0 + deltas)).astype(plain.dtype)
        return moved if exact is None else np.where(plain == exact, plain, moved)


def noisy(inputs: Arrays, rng: SeededRng, unit: float) -> dict[str, NDArray[Any]]:
    """Wrap the inputs' float32 arrays so that each rounding is perturbed by up to `unit`.

    Results that are exact do not change, so that ties of exact values stay ties; zero stays zero.
    Arithmetic on single elements, and that of other libraries, is not perturbed.
    """
    return wrapped(inputs, Noisy, rng=rng, unit=unit)


class Doubting(Noisy):
    """A `Noisy` array that also perturbs each ``a / b`` that differs from ``a * (1 / b)``."""

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        result = super().__array_ufunc__(ufunc, method, *inputs, out=out, **options)
        terms = None if out else float32_quotient(result, ufunc, method, inputs, options)
        if terms is None:
            return result
        above, below = terms
        plain = np.asarray(bare(result))
        return self._again(self._moved(plain, above * (np.float32(1.0) / below)))


def doubting(inputs: Arrays, rng: SeededRng, unit: float) -> dict[str, NDArray[Any]]:
    """Wrap arrays as `noisy` does, but also perturb ``a / b`` where ``a * (1 / b)`` differs.

    A correct op may compute a quotient as ``a * (1 / b)``. A quotient stays unchanged only if it is
    exact and this product has the same value. Otherwise, even a tie such as 2.5 is perturbed.
    """
    return wrapped(inputs, Doubting, rng=rng, unit=unit)


class _Flushing(Noisy):
    """A float32 array whose subnormal float32 results in numpy become 0."""

    # For each call that rounded such an array to integers, the name of the numpy function
    steps: list[str]

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        if ufunc in _STEPS and any(map(_is_float32, inputs)):
            self.steps.append(ufunc.__name__)
        return super().__array_ufunc__(ufunc, method, *inputs, out=out, **options)

    def astype(self, dtype: Any, *args: Any, **options: Any) -> Any:
        if np.dtype(dtype).kind in "iu" and _is_float32(self):
            self.steps.append("astype")
        return super().astype(dtype, *args, **options)

    def _moved(self, values: Any, exact: Any = None) -> NDArray[Any]:
        plain = np.asarray(values)
        return np.where(np.abs(plain) < FLOAT32_SMALLEST_NORMAL, plain.dtype.type(0.0), plain)


def flushing(inputs: Arrays, steps: list[str] | None = None) -> dict[str, NDArray[Any]]:
    """Wrap the inputs' float32 arrays so that their arithmetic replaces subnormal results by 0.

    Many GPU kernels are compiled to do this. The effect shows if an intermediate result is
    multiplied by a large number afterwards.
    """
    return wrapped(inputs, _Flushing, steps=[] if steps is None else steps)


def _is_float32(value: Any) -> bool:
    return getattr(value, "dtype", None) == np.float32


def widened(value: Any) -> Any:
    """Widen a float32 array or scalar, or the dtype float32 itself, to float64."""
    if value is np.float32 or (isinstance(value, np.dtype) and value == np.float32):
        return np.float64
    return value.astype(np.float64) if getattr(value, "dtype", None) == np.float32 else value


class Noisy64(np.ndarray[Any, np.dtype[Any]]):
    """A float64 array that perturbs the float64 results of numpy's operations on it.

    Results that are known to be exact are not perturbed. Those of matrix products are never known
    to be exact, since computing them in long double would take too long.
    """

    rng: SeededRng
    unit: float

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        plain = [bare64(value) for value in inputs]
        options = {name: bare64(value) for name, value in options.items()}
        if out:
            options["out"] = tuple(map(bare64, out))
        result = getattr(ufunc, method)(*plain, **options)
        if ufunc.nout > 1 or getattr(result, "dtype", None) != np.float64:
            return result
        if options.get("where", True) is not True:
            return out[0] if out else np.asarray(result).view(type(self))
        # A product of matrices in long doubles takes too long.
        exact = None if ufunc is np.matmul else _in_long_double(ufunc, method, plain, options)
        summed = ufunc in (np.add, np.subtract) and method != "__call__" and not out
        if summed and exact is not None and not np.array_equal(result, exact, equal_nan=True):
            first = bare64(self._moved(plain[0], None))
            result = getattr(ufunc, method)(first, *plain[1:], **options)
        moved = self._moved(result, exact)
        if not out:
            return moved.view(type(self))
        np.copyto(bare64(out[0]), bare64(moved))
        return out[0]

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = super().__array_function__(func, types, args, kwargs)
        if func not in PRODUCTS or getattr(result, "dtype", None) != np.float64:
            return result
        return self._moved(bare64(result), None).view(type(self))

    def _moved(self, values: Any, exact: Any) -> NDArray[Any]:
        """Multiply the values that are not exact by random factors.

        The factors lie within 1 ± `unit`. A value that equals its `exact` result is returned
        unchanged. If `exact` is None, all values are multiplied.
        """
        plain = np.asarray(values)
        deltas = (2.0 * self.rng.f64(plain.size) - 1.0).reshape(plain.shape) * self.unit
        with np.errstate(all="ignore"):
            moved: NDArray[Any] = plain * (1.0 + deltas)
        return moved if exact is None else np.where(plain == exact, plain, moved)


def noisy64(inputs: Arrays, rng: SeededRng, unit: float) -> dict[str, NDArray[Any]]:
    """Wrap the inputs' float64 arrays so that each rounding is perturbed by up to `unit`.

    This is `noisy` for references whose outputs are float64. It recognises a rounding by repeating
    the operation on numpy's long doubles. Where these are no wider than float64, as on ARM, only
    matrix products are perturbed.
    """
    return wrapped64(inputs, Noisy64, rng=rng, unit=unit)


def wrapped64(inputs: Arrays, kind: type[Noisy64], **attributes: Any) -> dict[str, NDArray[Any]]:
    """View float64 inputs as a subclass of `kind` that has `attributes` as class attributes.

    Other inputs are returned as they are.
    """
    made = type(kind.__name__, (kind,), attributes)
    return {
        name: array.view(made) if array.dtype == np.float64 else array
        for name, array in inputs.items()
    }


def bare64(value: Any) -> Any:
    """Return the array as a plain ndarray."""
    return value.view(np.ndarray) if isinstance(value, Noisy64) else value


def _in_long_double(
    ufunc: np.ufunc, method: str, operands: list[Any], options: dict[str, Any]
) -> Any:
    """Return the result of an operation in long double; None if numpy cannot compute it."""
    wide = [
        value.astype(np.longdouble) if getattr(value, "dtype", None) == np.float64 else value
        for value in operands
    ]
    rest = {name: value for name, value in options.items() if name not in ("out", "dtype")}
    try:
        result = getattr(ufunc, method)(*wide, **rest)
    except TypeError:
        return None
    return without_lost(ufunc, method, wide, rest, result)
