"""Format tensors as text: descriptions, values, and maps of the differences between two."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.debug.problems import shapes_differ
from gpuemu_flow.numerics.dtypes import to_float64
from gpuemu_flow.reporting.drawing import heat_map
from gpuemu_flow.reports.text import number, printable

Array = NDArray[Any]

SHOWN = 400
_LEVELS = " .:-=#!"
_LEGEND = (
    "'#' over 1/10 of the largest difference, '=' over 1/100, '-' over 1/1000, ':' over 1/10000, "
    "'.' less, ' ' equal, '!' NaN or Inf in one of them only"
)
_DECADES = (1e-4, 1e-3, 1e-2, 1e-1)
_SHARES = (0.05, 0.3, 0.9, 5.0, 100.0)  # one value for each level that `heat_map` draws
_NEVER_EQUAL = np.inf


def describe(name: str, array: Array) -> str:
    """Describe a tensor in one line: dtype, shape, range, mean, and numbers of NaN and Inf.

    Strides are shown, too, unless they are in C order.
    """
    words = f"{printable(name)}  {array.dtype.name}{list(array.shape)}"
    if array.size > 1 and not array.flags.c_contiguous:
        steps = [step // array.itemsize for step in array.strides]
        words += f"  strides {steps}"
    values = to_float64(array)
    finite = values[np.isfinite(values)]
    if finite.size:
        low, high, mean = float(finite.min()), float(finite.max()), float(finite.mean())
        words += f"  min {low:.9g}  max {high:.9g}  mean {mean:.9g}"
    for what, count in (
        ("NaN", np.isnan(values).sum()),
        ("Inf", np.isinf(values).sum()),
    ):
        words += f"  {count} {what}" if count else ""
    return words


def value_lines(array: Array) -> list[str]:
    """Return a tensor's values as lines of text.

    If there are more than `SHOWN` values, only the first and last ones of each dim are shown.
    """
    shown = to_float64(array) if array.dtype.kind == "V" else array
    digits = 5 if array.itemsize <= 2 else 17 if array.itemsize == 8 else 9
    with np.printoptions(threshold=SHOWN, edgeitems=4, linewidth=100, precision=digits):
        return str(np.asarray(shown)).splitlines()


def difference_lines(names: tuple[str, str], first: Array, second: Array) -> list[str]:
    """Return lines of text that compare two tensors.

    They show the number of elements that differ, the largest difference, and a map of all
    differences.

    Raises
    ------
    UsageError
        ``debug-shapes-differ``.
    """
    if first.shape != second.shape:
        raise shapes_differ(list(first.shape), list(second.shape))
    heading = f"{printable(' against '.join(names))}, {list(first.shape)}"
    if not first.size:
        return [f"{heading}: no elements"]
    a, b = to_float64(first), to_float64(second)
    with np.errstate(all="ignore"):
        error = np.array(np.abs(a - b))  # otherwise a 0-d difference is no array
    error[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    error[np.isnan(error)] = _NEVER_EQUAL
    differ = int((error > 0).sum())
    if not differ:
        return [f"{heading}: equal"]
    worst = np.unravel_index(int(error.argmax()), error.shape)
    place = [int(i) for i in worst]
    finite = error[np.isfinite(error)]
    largest = float(finite.max()) if finite.size else 0.0
    share = np.zeros(error.shape)
    if largest > 0:
        level = np.searchsorted(np.array(_DECADES), error / largest, side="left")
        share = np.where(error > 0, np.array(_SHARES)[level], 0.0)
    share[~np.isfinite(error)] = 1e9
    rows, fold = heat_map(share)
    return [
        f"{heading}: {differ} of {error.size} elements differ",
        f"largest {number(float(error[worst]))} at {place}: {a[worst]:.9g} against {b[worst]:.9g}",
        fold,
        *("|" + "".join(_LEVELS[int(c)] for c in row) + "|" for row in rows),
        _LEGEND,
    ]
