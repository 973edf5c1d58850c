"""Recognise float32 results that are rounded although float64 arithmetic gives the same result.

Usually, the same operation in float64 shows whether a float32 operation rounds. This fails if the
rounding error is so tiny that float64 rounds to the same number: ``1 + 1e-30`` is 1 in both types,
and so is ``tanh(30)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    """Return a float64 result with NaN in place of elements that are certainly rounded.

    There is one exception: a function such as ``exp`` is never 0 for a finite operand. Where it
    gives less than the smallest positive float32 number, the element is not NaN, but the smallest
    positive float64 number.
    """
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
