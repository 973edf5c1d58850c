"""Arithmetic with each rounding perturbed at random, to show the effect of reordered operations.

Perturbed inputs do not show errors of intermediate results: where equal results cancel, the
reference may return exactly 0, whereas a correct op, which adds in another order, returns a
rounding error of the cancelled terms. Perturbing each result by about its rounding error shows the
error of the op (Vignes, "A stochastic arithmetic for reliable scientific computation", 1993;
Parker, "Monte Carlo Arithmetic", 1997).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

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

_NEVER_EXACT = frozenset(
    (
        "exp", "expm1", "log", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsin",
        "arccos", "arctan", "arctan2", "arcsinh", "arccosh", "arctanh", "logaddexp", "erf", "erfc",
        "expit", "log_expit", "ndtr", "log_ndtr", "softplus",
    )
)  # fmt: skip
"""Functions, also of other libraries, whose values at algebraic numbers are transcendental, except
for values at a few points such as 0 (Baker, "Transcendental Number Theory", 1975, theorem 1.4)."""

_NEVER_ZERO = frozenset(("exp", "exp2", "erfc", "expit", "ndtr", "softplus"))
"""Functions whose value at a finite number is above 0, and 0 only because it underflows."""

_SMALLEST = {kind: np.finfo(kind).smallest_subnormal for kind in (np.float32, np.float64)}
_LOST = 2.0**-53
"""Share of a sum below which float64 loses a term."""


def without_lost(
    ufunc: np.ufunc,
    method: str,
    operands: Sequence[Any],
    options: Mapping[str, Any],
    result: Any,
) -> Any:
    """Return a float64 result with NaN in place of elements that are certainly rounded. There is
    one exception: a function such as ``exp`` is never 0 for a finite operand. Where it gives less
    than the smallest positive float32 number, the element is not NaN, but the smallest positive
    float64 number."""
    with np.errstate(all="ignore"):
        lost = _lost(ufunc, method, operands, options, result)
        given = result
        if lost is not None and np.any(lost):
            result = np.where(lost, np.nan, result)
        if method == "__call__" and ufunc.__name__ in _NEVER_ZERO:
            vanished = (given < _SMALLEST[np.float32]) & np.isfinite(operands[0])
            if np.any(vanished):
                result = np.where(vanished, _SMALLEST[np.float64], result)
        return result


def _lost(
    ufunc: np.ufunc,
    method: str,
    operands: Sequence[Any],
    options: Mapping[str, Any],
    result: Any,
) -> NDArray[np.bool_] | None:
    lost: NDArray[np.bool_]
    if method == "__call__" and ufunc.__name__ in _NEVER_EXACT:
        lost = np.isfinite(result)
        for operand in operands:
            lost = lost & np.isfinite(operand)
        return lost & (np.asarray(operands[0]) != 0.0) if len(operands) == 1 else lost
    if method == "__call__" and ufunc in (np.add, np.subtract):
        one, other = operands
        other = other if ufunc is np.add else np.negative(other)
        # The error of a sum of two is itself a float (Knuth, "The Art of Computer Programming",
        # volume 2, section 4.2.2).
        rest = result - one
        error = (one - (result - rest)) + (other - rest)
        lost = np.isfinite(result) & (error != 0.0)
        return lost
    if ufunc is np.add and method in ("reduce", "accumulate") and options.get("initial") is None:
        sizes = np.abs(operands[0])
        if not sizes.size:
            return None
        kept = {name: options[name] for name in ("axis", "keepdims") if name in options}
        smallest = getattr(np.minimum, method)(np.where(sizes == 0.0, np.inf, sizes), **kept)
        lost = smallest < _LOST * np.abs(result)
        return lost
    return None


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
        """Return the perturbed result of a sum. `plain` is the sum as it was computed, `again` is
        the sum of perturbed terms, and `exact` is the sum without rounding: elements that are equal
        to it stay unchanged."""
        return self._moved(again, exact)

    def _product(self, result: Any) -> Any:
        if getattr(result, "dtype", None) != np.float32:
            return result
        return self._moved(bare(result))

    def _moved(self, values: Any, exact: Any = None) -> NDArray[Any]:
        """Multiply the values that are not exact by random factors. The factors lie within 1 ±
        `unit`. A value that equals its `exact` result is returned unchanged. If `exact` is None,
        all values are multiplied."""
        plain = np.asarray(values)
        deltas = (2.0 * self.rng.f64(plain.size) - 1.0).reshape(plain.shape) * self.unit
        with np.errstate(all="ignore"):
            moved = (plain * (1.0 + deltas)).astype(plain.dtype)
        return moved if exact is None else np.where(plain == exact, plain, moved)


def noisy(inputs: Arrays, rng: SeededRng, unit: float) -> dict[str, NDArray[Any]]:
    """Wrap the inputs' float32 arrays so that each rounding is perturbed by up to `unit`. Results
    that are exact do not change, so that ties of exact values stay ties; zero stays zero.
    Arithmetic on single elements, and that of other libraries, is not perturbed."""
    return wrapped(inputs, Noisy, rng=rng, unit=unit)


class Doubting(Noisy):
    """A `Noisy` array that also perturbs each ``a / b`` where ``a * (1 / b)`` differs. A correct op
    may compute a quotient so. A quotient stays unchanged only if it is exact and this product has
    the same value. Otherwise, even a tie such as 2.5 is perturbed."""

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
    multiplied by a large number afterwards."""
    return wrapped(inputs, _Flushing, steps=[] if steps is None else steps)


def _is_float32(value: Any) -> bool:
    return getattr(value, "dtype", None) == np.float32


def widened(value: Any) -> Any:
    """Widen a float32 array or scalar, or the dtype float32 itself, to float64."""
    if value is np.float32 or (isinstance(value, np.dtype) and value == np.float32):
        return np.float64
    return value.astype(np.float64) if getattr(value, "dtype", None) == np.float32 else value


class Noisy64(np.ndarray[Any, np.dtype[Any]]):
    """A float64 or integer array that perturbs the float64 results of numpy's operations on it.
    Results that are known to be exact are not perturbed. Those of matrix products are never known
    to be exact, since computing them in long double would take too long."""

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
        if type(result) is np.ndarray and result.dtype.kind in "iu":
            return out[0] if out else result.view(type(self))
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
        """Multiply the values that are not exact by random factors. The factors lie within 1 ±
        `unit`. A value that equals its `exact` result is returned unchanged. If `exact` is None,
        all values are multiplied."""
        plain = np.asarray(values)
        deltas = (2.0 * self.rng.f64(plain.size) - 1.0).reshape(plain.shape) * self.unit
        with np.errstate(all="ignore"):
            moved: NDArray[Any] = plain * (1.0 + deltas)
        return moved if exact is None else np.where(plain == exact, plain, moved)


def wrapped64(inputs: Arrays, kind: type[Noisy64], **attributes: Any) -> dict[str, NDArray[Any]]:
    """View float64 and integer inputs as a subclass of `kind` that has `attributes` as class
    attributes. Other inputs are returned as they are."""
    made = type(kind.__name__, (kind,), attributes)
    return {
        name: array.view(made) if _is_held(array.dtype) else array for name, array in inputs.items()
    }


def _is_held(dtype: np.dtype[Any] | None) -> TypeGuard[np.dtype[Any]]:
    return dtype is not None and (dtype == np.float64 or dtype.kind in "iu")


def bare64(value: Any) -> Any:
    """Return the array as a plain ndarray."""
    return value.view(np.ndarray) if isinstance(value, Noisy64) else value


def _in_long_double(
    ufunc: np.ufunc, method: str, operands: list[Any], options: dict[str, Any]
) -> Any:
    """Return the result of an operation in long double; None if numpy cannot compute it."""
    dtypes = [getattr(value, "dtype", None) for value in operands]
    kinds = "f" if np.float64 in dtypes else "iu"  # integers beside floats may be indices
    wide = [
        value.astype(np.longdouble) if _is_held(dtype) and dtype.kind in kinds else value
        for value, dtype in zip(operands, dtypes, strict=True)
    ]
    rest = {name: value for name, value in options.items() if name not in ("out", "dtype")}
    try:
        result = getattr(ufunc, method)(*wide, **rest)
    except TypeError:
        return None
    return without_lost(ufunc, method, wide, rest, result)


STAND_INS = (85, 86)
"""Integers that NaN is cast to, one for each evaluation: no element equals both by chance."""


class _Casting(Single):
    """A float32 array that turns NaN into `stand_in` when it is cast to an integer dtype. In numpy,
    the integer that NaN becomes depends on the processor."""

    stand_in: int

    def astype(self, dtype: Any, *args: Any, **options: Any) -> Any:
        with np.errstate(invalid="ignore"):
            cast = super().astype(dtype, *args, **options)
        if np.dtype(dtype).kind not in "iu":
            return cast
        stand_in = np.dtype(dtype).type(self.stand_in)
        return np.where(np.isnan(bare(self)), stand_in, bare(cast)).view(type(self))


class _Marking(_Casting, Doubting):
    """An array that replaces each rounded result by NaN. A quotient also becomes NaN if the product
    of dividend and reciprocal has another value."""

    def _product(self, result: Any) -> Any:
        return np.full_like(bare(result), np.nan)

    def _moved(self, values: Any, exact: Any = None) -> NDArray[Any]:
        plain = np.asarray(values)
        return plain if exact is None else np.where(plain == exact, plain, plain.dtype.type(np.nan))


class _Stepping(Doubting):
    """An array that multiplies all rounded results of one chosen operation by one factor. Several
    values may be computed from one such result, for example from a scale. All of them then use the
    changed result."""

    turn: int
    met: list[int]

    def _product(self, result: Any) -> Any:
        return self._moved(bare(result), np.full_like(bare(result), np.nan))

    def _moved(self, values: Any, exact: Any = None) -> NDArray[Any]:
        plain = np.asarray(values)
        if exact is None:
            return plain
        rounded = plain != exact
        if not rounded.any():
            return plain
        self.met.append(self.turn)
        if len(self.met) != self.turn:
            return plain
        return np.where(rounded, plain * plain.dtype.type(1.0 + self.unit), plain)


class _Inverting(_Casting):
    """An array that changes quotients where the divisor's reciprocal overflows. Such a quotient
    becomes the product of the dividend and the infinite reciprocal."""

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        result = super().__array_ufunc__(ufunc, method, *inputs, out=out, **options)
        terms = float32_quotient(result, ufunc, method, inputs, options)
        if terms is None:
            return result
        above, below = terms
        with np.errstate(all="ignore"):
            inverse = np.float32(1.0) / below
            product = above * inverse
        overflows = np.isinf(inverse) & (below != 0.0)
        if not overflows.any():
            return result
        return self._into(out, np.where(overflows, product, np.asarray(bare(result))), "unsafe")


def marking(inputs: Arrays, stand_in: int) -> dict[str, NDArray[Any]]:
    """Return the inputs as float32 arrays whose arithmetic gives NaN wherever it rounds. A cast to
    an integer turns NaN into `stand_in`, so an integer result that is the same for two values of
    `stand_in` depends on no rounding. Results of matrix products count as rounded."""
    return wrapped(inputs, _Marking, stand_in=stand_in, rng=SeededRng(0), unit=0.0)


def stepping(inputs: Arrays, turn: int, change: float) -> tuple[dict[str, NDArray[Any]], list[int]]:
    """Return float32 arrays that change one operation's result, and a list that counts operations.
    The arithmetic adds one entry to the list for each operation that rounds."""
    met: list[int] = []
    return wrapped(inputs, _Stepping, turn=turn, met=met, rng=SeededRng(0), unit=change), met


def inverting(inputs: Arrays, stand_in: int) -> dict[str, NDArray[Any]]:
    """Return the inputs as arrays that change quotients where the divisor's reciprocal overflows.
    Such a quotient becomes the product of the dividend and the infinite reciprocal, as in an op
    that multiplies by reciprocals. A cast to an integer turns NaN into `stand_in`."""
    return wrapped(inputs, _Inverting, stand_in=stand_in)
