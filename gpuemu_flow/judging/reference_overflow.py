"""Find out whether the reference overflows where it gives Inf and an op gives finite numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.errors import FlowError
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, to_float64
from gpuemu_flow.numerics.perturb import widen

if TYPE_CHECKING:
    from gpuemu_flow.numerics.evaluations import Evaluate

    Base = np.ndarray[Any, np.dtype[Any]]
else:
    Base = np.ndarray

Arrays = Mapping[str, NDArray[Any]]

_WITH_POLES = (
    np.true_divide, np.reciprocal, np.log, np.log2, np.log10, np.log1p, np.arctanh, np.tan,
)  # fmt: skip
"""Functions whose exact result is infinite for some finite operands."""


class OverflowWatch(Base):
    """A float64 array that records which numpy functions overflow on it."""

    found: dict[str, float]

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        plain = [_bare(value) for value in inputs]
        if out:
            options["out"] = tuple(map(_bare, out))
        result = getattr(ufunc, method)(*plain, **options)
        if method == "__call__" and ufunc not in _WITH_POLES:
            self._note(ufunc, plain, result)
        if out:
            return out[0] if len(out) == 1 else out
        if getattr(result, "dtype", None) == np.float64:
            return np.asarray(result).view(type(self))
        return result

    def _note(self, ufunc: np.ufunc, operands: list[Any], result: Any) -> None:
        if getattr(result, "dtype", None) != np.float64:
            return
        lost = np.isinf(result)
        for operand in operands:
            lost = lost & np.isfinite(operand)
        if lost.any():
            first = np.broadcast_to(np.abs(np.asarray(operands[0], np.float64)), lost.shape)
            least = float(first[lost].min())
            self.found[ufunc.__name__] = min(least, self.found.get(ufunc.__name__, least))


def _bare(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, OverflowWatch) else value


def overflow_notes(
    actual: Arrays, expected: Arrays, inputs: Arrays, evaluate: Evaluate
) -> list[str]:
    """Return a note if the reference overflows to Inf or NaN where the op gives numbers; else [].

    The note is only a hint and changes no verdict: the exact result, of an ``exp`` for example, may
    really exceed float64. There is no note for references that do not compute with numpy, or that
    are not evaluated in this process.
    """
    floats = [a for a in inputs.values() if dtype_name(a.dtype) in FLOAT_LIMITS]
    finite = all(np.isfinite(to_float64(array)).all() for array in floats)
    if not any(_lost(actual.get(n), values, nan=finite) for n, values in expected.items()):
        return []
    found: dict[str, float] = {}
    kind = type("OverflowWatch", (OverflowWatch,), {"found": found})
    watched = {
        name: array.view(kind) if array.dtype == np.float64 else array
        for name, array in widen(inputs).items()
    }
    try:
        evaluate(watched)
    except FlowError:
        return []
    if not found:
        return []
    which = " and ".join(f"`{name}` of {least:.6g} and more" for name, least in found.items())
    return [
        f"the reference itself overflows in float64, in {which}; if the exact result is a number, "
        "the reference is wrong there, not the op: write it without the overflow"
    ]


def _lost(actual: NDArray[Any] | None, expected: NDArray[Any], *, nan: bool) -> bool:
    """Tell whether an op gives a number where the reference gives Inf or, if `nan`, NaN."""
    if actual is None or actual.shape != expected.shape:
        return False
    wanted = to_float64(expected)
    lost = np.isinf(wanted) | (np.isnan(wanted) if nan else False)
    return bool((lost & np.isfinite(to_float64(actual))).any())
