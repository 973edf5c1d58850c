"""Arithmetic in which a sum overflows if any order of its terms would overflow.

Float32 ends at 3.4e38, and parts of a sum may overflow where the whole sum does not. The order of
additions then decides between a number, an infinity and, where parts of both signs overflow, NaN.
The result of one order proves nothing about the others, and a correct op may use any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS
from gpuemu_flow.numerics.perturb import Arrays
from gpuemu_flow.numerics.single import (
    PRODUCTS,
    Single,
    bare,
    operands_in_float32,
    options_in_float32,
    wrapped,
)

FAR = 1e6
"""Magnitude of inputs below which float32 hardly overflows: a product of six of them does not."""

_LARGEST = FLOAT_LIMITS["float32"].max
_DIGITS = 2.0**-50
"""Error of a float64 sum, per term, as a share of the sum of the terms' magnitudes."""


class _Overflowing(Single):
    """A float32 array whose sums and matrix products overflow as in the worst order of additions.

    An element of such a result is infinite or NaN if at least one order of its terms may make it
    so, even if numpy's own order does not.
    """

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        sums = ufunc is np.add and method in ("reduce", "accumulate", "reduceat")
        if not (sums or (ufunc is np.matmul and method == "__call__")):
            return super().__array_ufunc__(ufunc, method, *inputs, out=out, **options)
        if options.get("where", True) is not True or options.get("initial") is not None:
            return super().__array_ufunc__(ufunc, method, *inputs, out=out, **options)
        options = options_in_float32(options)
        plain = operands_in_float32(ufunc, method, inputs)
        call = getattr(ufunc, method)
        result = call(*plain, **options)
        if getattr(result, "dtype", None) == np.float32:
            options.pop("dtype", None)  # `_overflowed` computes in float64
            terms, places = (plain[:1], plain[1:]) if sums else (plain, [])
            result = _overflowed(result, lambda *a: call(*a, *places, **options), terms)
        return self._into(out, result, "unsafe")

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = super().__array_function__(func, types, args, kwargs)
        known = func in PRODUCTS and kwargs.get("out") is None and not kwargs.get("dtype")
        if not known or getattr(result, "dtype", None) != np.float32:
            return result
        terms: list[Any] = []
        shape = _taken(args, terms), _taken(kwargs, terms)

        def call(*given: Any) -> Any:
            rest = list(given)
            return func(*_put(shape[0], rest), **_put(shape[1], rest))

        return self._again(_overflowed(bare(result), call, terms))


def overflowing(inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Wrap the inputs' float32 arrays so that a sum overflows if any order of its terms would.

    A sum of n terms may become infinite where n times the sum of the terms of one sign exceeds the
    range of float32, and NaN where this holds for both signs. The factor n covers weights that are
    divided by their sum only at the end, as in an online softmax.

    Three kinds of sums are computed as usual: the elementwise sum of two arrays (``a + b``), sums
    by other libraries, and sums by methods written in C (``a.dot(b)``).
    """
    return wrapped(inputs, _Overflowing)


def _overflowed(result: Any, call: Callable[..., Any], terms: list[Any]) -> NDArray[Any]:
    """Return the result with infinities and NaN wherever some order of the terms may give them."""
    plain = np.asarray(result)
    with np.errstate(all="ignore"):
        wide = [np.nan_to_num(_wide(t), nan=0.0, posinf=0.0, neginf=0.0) for t in terms]
        if not all(values.size for values in wide) or not plain.size:
            return plain
        sizes = [np.abs(values) for values in wide]
        most = float(max(values.size for values in wide))
        if most * most * np.prod([values.max() for values in sizes]) <= _LARGEST:
            return plain
        total, exact = np.asarray(call(*sizes)), np.asarray(call(*wide))
        count = np.asarray(call(*(np.ones(values.shape) for values in wide)))
        above, below = (total + exact) / 2.0, (total - exact) / 2.0
        doubt = count * _DIGITS * total
        to_plus = ((count * above > _LARGEST) & (above > doubt)) | (plain == np.inf)
        to_minus = ((count * below > _LARGEST) & (below > doubt)) | (plain == -np.inf)
        changed = np.where(to_plus, np.inf, np.where(to_minus, -np.inf, plain))
        changed = np.where((to_plus & to_minus) | np.isnan(plain), np.nan, changed)
        return changed.astype(np.float32)


def _wide(value: Any) -> NDArray[np.float64]:
    return np.asarray(bare(value), dtype=np.float64)


def _taken(value: Any, terms: list[Any]) -> Any:
    """Move the arrays of numbers in a call's arguments to the end of the list `terms`.

    The arguments may be nested in lists, tuples and dicts. They are returned with `_PLACE` instead
    of each array. `_put` is the inverse.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "iufb":
            terms.append(value)
            return _PLACE
        return value
    if type(value) in (list, tuple):
        return type(value)(_taken(inner, terms) for inner in value)
    if isinstance(value, dict):
        return {name: _taken(inner, terms) for name, inner in value.items()}
    return value


_PLACE = object()
"""Stands for an array that was taken out of its arguments."""


def _put(value: Any, terms: list[Any]) -> Any:
    """Return a call's arguments with the arrays of `terms` in place of each `_PLACE`.

    The arrays are used in order, and are removed from the list.
    """
    if value is _PLACE:
        return terms.pop(0)
    if type(value) in (list, tuple):
        return type(value)(_put(inner, terms) for inner in value)
    if isinstance(value, dict):
        return {name: _put(inner, terms) for name, inner in value.items()}
    return value
