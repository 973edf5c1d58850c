"""Arithmetic with regrouped sums and differences: ``a - (b + c)`` in place of ``(a - b) - c``.

A correct op may group three terms in another way than its reference, and so have other rounding
errors. Evaluations on perturbed inputs, or in another memory order, do not show these errors.

For example, a fused log-softmax computes ``x - (max + log sum)``, but its reference computes
``(x - max) - log sum``. If the maximum is 1000, the fused form is off by a rounding of 1000,
however small its result is.
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


class _Regrouped(Single):
    """A float32 array that remembers, until it is changed, the two arrays it was computed from."""

    # Two arrays: this array is the first minus the second. None if this array is no sum or
    # difference, or has been changed.
    terms: tuple[NDArray[Any], NDArray[Any]] | None = None

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        for array in out:
            if isinstance(array, _Regrouped):
                array.terms = None
        if method == "__call__" and ufunc in (np.add, np.subtract) and not (out or options):
            return self._sum(ufunc, *inputs)
        return super().__array_ufunc__(ufunc, method, *inputs, out=out, **options)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.terms = None
        super().__setitem__(key, value)

    def _sum(self, ufunc: np.ufunc, left: Any, right: Any) -> Any:
        """Compute a sum or difference of two arrays, regrouped if one of them is itself a sum."""
        minus = ufunc is np.subtract
        one, other = operands_in_float32(ufunc, "__call__", (left, right))
        plain = ufunc(one, other)
        if getattr(plain, "dtype", None) != np.float32:
            return self._again(plain)
        first, second = (getattr(value, "terms", None) for value in (left, right))
        if first is not None:
            terms = (first[0], first[1] + other if minus else first[1] - other)
        elif second is not None and minus:
            terms = (one + second[1], second[0])
        elif second is not None:
            terms = (one + second[0], second[1])
        else:
            terms = (one, other if minus else np.negative(other))
        grouped = first is not None or second is not None
        result: _Regrouped = np.asarray(terms[0] - terms[1] if grouped else plain).view(_Regrouped)
        result.terms = terms
        return result


def regrouped(inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Wrap the inputs' float32 arrays so that sums and differences of three terms are regrouped.
    Where a reference computes ``(a - b) - c``, the wrapped arrays compute ``a - (b + c)``. Any
    other use of ``a - b`` gets the usual value of that difference. Arithmetic on single elements,
    and that of other libraries, is unchanged."""
    return wrapped(inputs, _Regrouped)


FAR = 1e6
"""Magnitude of inputs below which float32 hardly overflows: a product of six of them does not."""

_LARGEST = FLOAT_LIMITS["float32"].max
_DIGITS = 2.0**-50
"""Error of a float64 sum, per term, as a share of the sum of the terms' magnitudes."""


class _Overflowing(Single):
    """A float32 array whose sums and matrix products overflow as in the worst order of additions.
    An element of such a result is infinite or NaN if at least one order of its terms may make it
    so, even if numpy's own order does not."""

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
    """Wrap the inputs' float32 arrays so that a sum overflows if any order of its terms would. A
    sum of n terms may become infinite where n times the sum of the terms of one sign exceeds the
    range of float32, and NaN where this holds for both signs. The factor n covers weights that are
    divided by their sum only at the end, as in an online softmax. Three kinds of sums are computed
    as usual: the elementwise sum of two arrays (``a + b``), sums by other libraries, and sums by
    methods written in C (``a.dot(b)``)."""
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
    """Move the arrays of numbers in a call's arguments to the end of the list `terms`. The
    arguments may be nested in lists, tuples and dicts. They are returned with `_PLACE` instead of
    each array. `_put` is the inverse."""
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
    """Return a call's arguments with the arrays of `terms` in place of each `_PLACE`. The arrays
    are used in order, and are removed from the list."""
    if value is _PLACE:
        return terms.pop(0)
    if type(value) in (list, tuple):
        return type(value)(_put(inner, terms) for inner in value)
    if isinstance(value, dict):
        return {name: _put(inner, terms) for name, inner in value.items()}
    return value
