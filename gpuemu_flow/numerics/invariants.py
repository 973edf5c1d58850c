"""Properties that an output must have, whatever its reference returns: non-negative, finite, ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.numerics.blocked import paired_blocks, take
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, to_float64
from gpuemu_flow.numerics.statistics import multi_index
from gpuemu_flow.types import DTYPES, Failure, FailureKind, Shape, Tolerance

Array = NDArray[Any]
BoolArray = NDArray[np.bool_]

CHUNK = 1 << 20
"""Number of elements examined at a time, so that memory stays bounded."""


class BrokenInvariant(Struct, frozen=True):
    """The first violation of an invariant by an output."""

    message: str
    index: Shape | None = None
    actual: float | None = None


def check_invariant(
    name: str,
    output: Array,
    dtype: str,
    tolerance: Tolerance,
    exempt: BoolArray | None = None,
) -> BrokenInvariant | None:
    """Check one invariant of one output.

    Raises ValueError when the name is unknown.

    ``non_negative``: no element below zero; -0.0 and NaN are not below zero. ``finite``: no NaN and
    no Inf; ``no_nan``: no NaN; ``no_inf``: no Inf. ``symmetric``: the last two dims are square and
    the matrices equal their transposes, NaN counting as equal to NaN. ``normalized``: sums over the
    last dim, taken in float64, are 1 to within ``max(atol, rtol, n * epsilon(dtype))``.
    """
    if name == "shape_preserved" or output.size == 0:
        return None
    if name == "symmetric":
        return _check_symmetric(output, tolerance, exempt)
    if name == "normalized":
        return _check_normalized(output, dtype, tolerance, exempt)
    if name not in _ELEMENTWISE:
        raise ValueError(f"unknown invariant {name!r}")
    known = DTYPES.get(dtype)
    if (
        known is not None
        and known.kind != "float"
        and (name, known.kind) != ("non_negative", "int")
    ):
        return None
    return _check_elements(name, output, exempt)


def as_failure(name: str, output_name: str, violation: BrokenInvariant) -> Failure:
    """Return a violation in the form of a failure."""
    return Failure(
        FailureKind.INVARIANT,
        f"invariant {name} does not hold: {violation.message}",
        output=output_name,
        index=violation.index,
        actual=violation.actual,
    )


def check_shape_preserved(
    shape: Shape, input_name: str, input_shape: Shape
) -> BrokenInvariant | None:
    """Check a ``shape_preserved`` that names an input: the output must have this input's shape."""
    if shape == input_shape:
        return None
    return BrokenInvariant(
        f"the output has shape {list(shape)}, {input_name!r} {list(input_shape)}"
    )


_ELEMENTWISE: dict[str, tuple[Callable[[Array], BoolArray], str]] = {
    "non_negative": (lambda values: values < 0, "is below zero"),
    "finite": (lambda values: ~np.isfinite(values), "is not finite"),
    "no_nan": (np.isnan, "is NaN"),
    "no_inf": (np.isinf, "is infinite"),
}


def _check_elements(name: str, output: Array, exempt: BoolArray | None) -> BrokenInvariant | None:
    violates, what = _ELEMENTWISE[name]
    for start, block, _ in paired_blocks(output, output):
        # int64 does not fit float64, and the dtypes of ml_dtypes have no predicates of numpy's.
        values = block if block.dtype.kind in "iu" else to_float64(block)
        bad = violates(values)
        if exempt is not None:
            bad &= ~exempt.reshape(-1)[start : start + bad.size]
        if bad.any():
            at = int(bad.argmax())
            index, value = multi_index(start + at, output.shape), float(values[at])
            return BrokenInvariant(f"the element at {list(index)} {what}", index, value)
    return None


def _check_normalized(
    output: Array, dtype: str, tolerance: Tolerance, exempt: BoolArray | None
) -> BrokenInvariant | None:
    length = output.shape[-1] if output.ndim else 1
    epsilon = FLOAT_LIMITS[dtype].eps if dtype in FLOAT_LIMITS else 0.0
    allowed = max(tolerance.atol, tolerance.rtol, length * epsilon)
    rows_at_once = max(1, CHUNK // length)
    for first in range(0, output.size // length, rows_at_once):
        last = min(first + rows_at_once, output.size // length)
        where = slice(first * length, last * length)
        rows = to_float64(take(output, where)).reshape(-1, length)
        with np.errstate(all="ignore"):
            sums = rows.sum(axis=1)
            bad = ~(np.abs(sums - 1.0) <= allowed)
        if exempt is not None:
            bad &= ~exempt.reshape(-1)[where].reshape(-1, length).any(axis=1)
        if bad.any():
            row = int(bad.argmax())
            index = multi_index((first + row) * length, output.shape)[:-1]
            total = float(sums[row])
            message = (
                f"the last dim at {list(index)} sums to {total:.9g}, 1 +- {allowed:.3g} wanted"
            )
            return BrokenInvariant(message, index, total)
    return None


def _check_symmetric(
    output: Array, tolerance: Tolerance, exempt: BoolArray | None
) -> BrokenInvariant | None:
    if output.ndim < 2 or output.shape[-1] != output.shape[-2]:
        return BrokenInvariant(f"shape {list(output.shape)} does not end in a square matrix")
    size = output.shape[-1]
    rows_at_once = max(1, CHUNK // size)
    for lead in np.ndindex(output.shape[:-2]):
        matrix = output[lead]
        for first in range(0, size, rows_at_once):
            rows = slice(first, first + rows_at_once)
            values, mirrored = to_float64(matrix[rows]), to_float64(matrix[:, rows].T)
            with np.errstate(all="ignore"):
                error = np.abs(values - mirrored)
                allowed = tolerance.atol + tolerance.rtol * np.abs(mirrored)
                finite = np.isfinite(error)
            equal = (values == mirrored) | (np.isnan(values) & np.isnan(mirrored))
            bad = ~(equal | (finite & (error <= allowed)))
            if exempt is not None:
                bad &= ~(exempt[lead][rows] | exempt[lead][:, rows].T)
            if bad.any():
                row, column = divmod(int(bad.argmax()), size)
                index = (*lead, first + row, column)
                message = (
                    f"the elements at {list(index)} and mirrored are "
                    f"{values[row, column]:.9g} and {mirrored[row, column]:.9g}"
                )
                return BrokenInvariant(message, index, float(values[row, column]))
    return None
