"""Arithmetic with regrouped sums and differences: ``a - (b + c)`` in place of ``(a - b) - c``.

A correct op may group three terms in another way than its reference, and so have other rounding
errors. Evaluations on perturbed inputs, or in another memory order, do not show these errors.

For example, a fused log-softmax computes ``x - (max + log sum)``, but its reference computes
``(x - max) - log sum``. If the maximum is 1000, the fused form is off by a rounding of 1000,
however small its result is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.perturb import Arrays
from gpuemu_flow.numerics.single import Single, operands_in_float32, wrapped


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
    and that of other libraries, is unchanged.
    """
    return wrapped(inputs, _Regrouped)
