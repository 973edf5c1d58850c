"""Summarise the errors of a failing case's output by a map, a scatter plot and a histogram."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.judging.judge import Criteria
from gpuemu_flow.numerics.checked_output import CheckedOutput, SpecialInputs, compare_output
from gpuemu_flow.numerics.compare import tolerance_of
from gpuemu_flow.numerics.dtypes import to_float64
from gpuemu_flow.numerics.judge import AffineBound, Judgement, judge
from gpuemu_flow.results.document import SHARES, Picture

Arrays = Mapping[str, NDArray[Any]]

MAX_ROWS, MAX_COLUMNS = 32, 64
MAX_ELEMENTS = 1 << 24
_LEVEL_ENDS = (0.0, 0.1, 0.5, 1.0, 10.0, 1000.0)
_LOWEST, _HIGHEST = -40, 40  # decades; values beyond are drawn at the edge
SHOWN_VALUES = 64
FEW_VALUES = 8


def draw(
    name: str, actual: Arrays, expected: Arrays, inputs: Arrays, criteria: Criteria
) -> Picture:
    """Compare an output with its expected values, and return the figures to draw."""
    contracts = criteria.contracts
    dtypes = criteria.dtypes
    if contracts:
        if contracts.refused or name not in contracts.expected:
            return Picture(name, note="the output is not compared element by element")
        actual, expected = contracts.views(actual), contracts.expected
        dtypes = contracts.dtypes(dtypes)
    output = actual[name]
    if output.size > MAX_ELEMENTS:
        return Picture(name, output.shape, note=f"{output.size} elements are too many to draw")
    if not output.size:
        return Picture(name, output.shape, note="an output without elements")
    special = SpecialInputs(inputs)
    checked = compare_output(
        name,
        output,
        expected[name],
        dtypes[name],
        tolerance_of(name, dtypes[name], criteria.tolerance, contracts),
        criteria.policy,
        special,
    )
    judgement = _judge(checked)
    share = np.where(judgement.failed, np.maximum(judgement.share, np.nextafter(1.0, 2.0)),
                     np.minimum(judgement.share, 1.0))  # fmt: skip
    rows, fold = heat_map(share.reshape(output.shape))
    return Picture(
        output=name,
        shape=output.shape,
        rows=rows,
        fold=fold,
        scatter=scatter(to_float64(expected[name]).ravel(), judgement.error, judgement.failed),
        histogram=histogram(share),
        elements=output.size,
        failing=int(judgement.failed.sum()),
    )


def _judge(checked: CheckedOutput) -> Judgement:
    allowed = checked.tolerance
    bound = (
        AffineBound(allowed.atol, allowed.rtol)
        if checked.envelope is None
        else checked.envelope.final(checked.name)
    )
    flat = slice(0, checked.actual.size)
    values = to_float64(checked.actual).ravel().copy(), to_float64(checked.expected).ravel().copy()
    return judge(*values, bound, flat, checked.rules)


def heat_map(share: NDArray[np.float64]) -> tuple[tuple[str, ...], str]:
    """Return a tensor as rows of characters, and a text that describes how it was folded.

    There are at most `MAX_ROWS` rows of at most `MAX_COLUMNS` cells. The last dim runs to the
    right, all others downward; a long vector continues in the next row. A cell is one character,
    which shows the level of the worst element in it; see `LEVELS`.
    """
    shape = share.shape or (1,)
    columns = shape[-1]
    grid = share.reshape(-1, columns)
    if grid.shape[0] == 1 and columns > MAX_COLUMNS:  # a long vector is shown as lines of text are
        width = max(MAX_COLUMNS, math.ceil(columns / MAX_ROWS))
        padded = np.zeros(math.ceil(columns / width) * width)
        padded[:columns] = grid[0]
        grid = padded.reshape(-1, width)
        what = f"each row is {width} elements in a row"
    else:
        leading = " x ".join(map(str, shape[:-1]))
        right_words = f"the last dim ({columns}) to the right" if leading else "from left to right"
        what = f"{leading} downward, {right_words}" if leading else right_words
    levels = np.searchsorted(np.array(_LEVEL_ENDS), grid, side="left")
    down = _edges(grid.shape[0], MAX_ROWS)
    right = _edges(grid.shape[1], MAX_COLUMNS)
    levels = np.maximum.reduceat(np.maximum.reduceat(levels, down, axis=0), right, axis=1)
    tall, wide = grid.shape[0] / len(down), grid.shape[1] / len(right)
    if tall > 1 or wide > 1:
        what += f"; a cell is the worst of up to {math.ceil(tall)} x {math.ceil(wide)} elements"
    return tuple("".join(map(str, row)) for row in levels.tolist()), what


def _edges(size: int, most: int) -> NDArray[np.intp]:
    count = min(size, most)
    return np.arange(count, dtype=np.intp) * size // count


def scatter(
    expected: NDArray[np.float64], error: NDArray[np.float64], failed: NDArray[np.bool_]
) -> tuple[tuple[int, int, int, int], ...]:
    """Count elements by magnitude (x) and error (y), both rounded down to half decades.

    Return (x, y, number of elements, number of failing elements) for each pair that occurs; see
    `_half_decades` for the unit of x and y.
    """
    with np.errstate(all="ignore"):
        x = _half_decades(np.abs(expected))
        y = _half_decades(error)
    cells, where, counts = np.unique(
        np.stack([x, y], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    wrong = np.bincount(where.ravel(), weights=failed, minlength=len(cells))
    return tuple(
        (int(cell[0]), int(cell[1]), int(count), int(bad))
        for cell, count, bad in zip(cells, counts, wrong, strict=True)
    )


def _half_decades(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return ``floor(2 log10 v)`` for each value v >= 0.

    Zeros get the lowest possible number, NaN and Inf the highest one.
    """
    tiny, huge = 2 * _LOWEST, 2 * _HIGHEST
    found = np.full(values.shape, float(huge))
    finite = np.isfinite(values)
    found[finite] = np.clip(np.floor(2 * np.log10(values[finite])), tiny, huge - 1)
    return found.astype(np.int64)


def histogram(share: NDArray[np.float64]) -> tuple[int, ...]:
    """Count elements by the share of the tolerance that they use, in the intervals of `SHARES`."""
    bars = np.searchsorted(np.array(SHARES), share, side="left")
    return tuple(np.bincount(bars, minlength=len(SHARES) + 1).tolist())


def values_text(array: NDArray[Any]) -> str:
    """Format the values of a tensor.

    If the tensor is large, and all values but a few are equal, only these few are listed. Of other
    large tensors, the first and last values of each dim are shown.
    """
    values = np.asarray(to_float64(array) if array.dtype.kind == "V" else array)
    with np.printoptions(threshold=SHOWN_VALUES, edgeitems=3, linewidth=90, precision=9):
        return (_few_that_differ(values) if values.size > SHOWN_VALUES else "") or str(values)


def _few_that_differ(values: NDArray[Any]) -> str:
    """Describe a tensor in which all elements but a few are equal; empty if it is no such tensor.

    Minimised inputs are of this kind.
    """
    for rest in dict.fromkeys((values.dtype.type(0).item(), values.flat[-1].item())):
        places = np.argwhere(values != rest)
        if len(places) <= FEW_VALUES:
            few = [f"{list(map(int, at))} = {values[tuple(at)].item()!r}" for at in places]
            return f"{rest!r} everywhere" + (f" but {', '.join(few)}" if few else "")
    return ""
