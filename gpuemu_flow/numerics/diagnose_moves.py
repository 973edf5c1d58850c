"""Right values in wrong places: swapped axes, shifted or stale rows, copies of an input.

==================  ==============================================================================
kind                the failing elements are
==================  ==============================================================================
``transposed``      the reference's with two axes of equal size swapped
``reversed``        the reference's from the other end of an axis
``shifted``         the reference's at a fixed distance along an axis, as in stale rows
``repeated``        the reference's first row, or first tile, over and over
``input-copy``      an input's
``permuted``        the reference's in another order
==================  ==============================================================================
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, Float64Array, dtype_name, to_float64
from gpuemu_flow.numerics.finding import Evidence, Finding, Points, Positions, spread
from gpuemu_flow.numerics.judge import BoolArray

MOST = 0.9
LEFT = 0.1
LOOKED_AT = 4096
DISTANCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LARGEST_SORTED = 1 << 16
LEAST_PERMUTED = 8
LEAST_LINES, FEW_LINES = 3, 16
"""Fewest wrong indices of an axis that show a shift or a repetition along it, if the axis has fewer
than `FEW_LINES`; fewest different values of wrong elements."""
PERMUTED = 0.98
_INDEX_NAMES = {-1: "column", -2: "row"}


def moves(evidence: Evidence) -> list[Finding]:
    """Find right values at wrong places.

    The list is empty if there are too few elements, or too few different expected values, to
    identify the places of values.
    """
    points = evidence.finite
    if evidence.total < 4 or not len(points):
        return []
    points = _thinned(points)
    # Values that occur many times match at wrong positions, too.
    distinct = np.unique(points.expected).size, np.unique(points.actual).size
    if distinct[0] < max(3, len(points) // 4) or distinct[1] < LEAST_LINES:
        return []
    if len(points) < 3:
        return []
    found = [
        *_swapped(evidence, points),
        *_along_axes(evidence, points),
        *_copies(evidence, points),
    ]
    if not found:
        found = list(_permuted(evidence))
    return found


def _thinned(points: Points) -> Points:
    chosen = spread(np.arange(len(points)), LOOKED_AT)
    return Points(points.positions[chosen], points.actual[chosen], points.expected[chosen])


def _agreement(evidence: Evidence, points: Points, sources: Positions) -> float:
    """Return the share of points that have the value expected at another position.

    The result is the smaller of two shares. The first is the share of points that equal the value
    at their source, up to the rounding of a correct op. The second is the share of points that are
    at least ten times closer to the value at their source than to their own expected value. Without
    it, points would agree with any source whose value hardly differs from their own expected value.
    """
    candidate = evidence.expected_at(sources)
    explained = np.abs(points.actual - candidate) <= LEFT * np.abs(points.actual - points.expected)
    share = _near(evidence, points.actual, candidate)
    return min(share, float(np.count_nonzero(explained)) / max(len(points), 1))


def _all_moved(evidence: Evidence, source: Callable[[Positions], Positions]) -> bool:
    """Tell whether the right elements, too, have the values of the places that `source` gives."""
    right = _thinned(evidence.passing)
    right = right.where(np.isfinite(right.actual))
    there = evidence.expected_at(source(right.positions))
    return not len(right) or _near(evidence, right.actual, there) >= MOST


def _near(evidence: Evidence, actual: Float64Array, candidate: Float64Array) -> float:
    """Return the share of elements of `actual` that are nearly equal to those of `candidate`.

    Two elements are nearly equal if they differ by no more than the rounding errors of a correct
    op.
    """
    eps = evidence.fmt.eps if evidence.fmt is not None else 0.0
    finite = candidate[np.isfinite(candidate)]
    scale = np.abs(finite).max(initial=0.0)
    allowed = max(2.0 * eps, 1e-5 if eps else 0.0) * np.abs(candidate) + 1e-6 * scale * bool(eps)
    near = np.abs(actual - candidate) <= allowed
    return float(np.count_nonzero(near)) / max(actual.size, 1)


def _swapped(evidence: Evidence, points: Points) -> Iterator[Finding]:
    """Yield findings that two axes of equal size are swapped in the op's output."""
    shape = evidence.shape
    for i, j in itertools.combinations(range(len(shape)), 2):
        if shape[i] < 2 or shape[i] != shape[j]:
            continue

        def swapped(positions: Positions, i: int = i, j: int = j) -> Positions:
            index = list(np.unravel_index(positions, shape))
            index[i], index[j] = index[j], index[i]
            return np.ravel_multi_index(index, shape)

        share = _agreement(evidence, points, swapped(points.positions))
        if share >= MOST and _all_moved(evidence, swapped):
            sentence = f"actual is expected with axes {i} and {j} swapped"
            yield Finding("transposed", sentence, {"axes": [i, j], "share": share}, 0.97)


def _along_axes(evidence: Evidence, points: Points) -> Iterator[Finding]:
    """Find shifts, repetitions and reversals along each axis."""
    shape = evidence.shape
    index = np.unravel_index(points.positions, shape)
    for axis, size in enumerate(shape):
        if size < 2:
            continue
        here = index[axis]
        # Of neighbouring indices a row of a table is the one before, whatever an op reads.
        if (size < FEW_LINES or evidence.indexed) and np.unique(here).size < LEAST_LINES:
            continue
        name = _INDEX_NAMES.get(axis - len(shape), "index") if len(shape) > 1 else "element"

        stride = int(np.prod(shape[axis + 1 :]))

        def source(moved: Positions, here: Positions = here, stride: int = stride) -> Positions:
            return points.positions + (moved - here) * stride

        for distance in (d * sign for d in DISTANCES if d < size for sign in (-1, 1)):
            inside = (here + distance >= 0) & (here + distance < size)
            if np.count_nonzero(inside) < max(3, MOST * len(points)):
                continue
            chosen = points.where(inside)
            share = _agreement(evidence, chosen, chosen.positions + distance * stride)
            share *= float(np.count_nonzero(inside)) / len(points)
            if share >= MOST and not _is_sorted(evidence.expected, axis):
                where = f"{abs(distance)} {'before' if distance < 0 else 'behind'}"
                sentence = f"actual is the expected value of the {name} {where} (stale or shifted)"
                numbers = {"axis": axis, "distance": distance, "share": share}
                yield Finding("shifted", sentence, numbers, 0.96)
                return

        def mirrored(positions: Positions, size: int = size, stride: int = stride) -> Positions:
            return positions + (size - 1 - 2 * (positions // stride % size)) * stride

        share = _agreement(evidence, points, mirrored(points.positions))
        if share >= MOST and _all_moved(evidence, mirrored):
            sentence = f"actual is expected in reverse order along axis {axis}"
            yield Finding("reversed", sentence, {"axis": axis}, 0.95)
        for tile in (t for t in (1, *DISTANCES[3:]) if t < size):
            share = _agreement(evidence, points, source(here % tile))
            if share >= MOST:
                what = f"the first {name}" if tile == 1 else f"the first {tile} {name}s"
                sentence = f"actual repeats {what} of expected"
                numbers = {"axis": axis, "tile": tile, "share": share}
                yield Finding("repeated", sentence, numbers, 0.95)
                break


def _is_sorted(expected: NDArray[Any], axis: int) -> bool:
    """Tell whether all behind an element moves up without it, as in sorted rows."""
    lines = np.moveaxis(expected, axis, 0)
    return bool((lines[1:] >= lines[:-1]).all() or (lines[1:] <= lines[:-1]).all())


def _copies(evidence: Evidence, points: Points) -> Iterator[Finding]:
    """Yield findings of failing elements that equal an input's element at the same index."""
    for name, array in evidence.inputs.items():
        if array.shape != evidence.shape:
            continue
        index = np.unravel_index(points.positions, evidence.shape)
        given = to_float64(array[index])
        error = np.abs(points.actual - points.expected)
        explained = np.count_nonzero(np.abs(points.actual - given) <= LEFT * error)
        share = min(_near(evidence, points.actual, given), float(explained) / len(points))
        if share >= MOST:
            sentence = f"the wrong elements are the input {name}, unchanged"
            yield Finding("input-copy", sentence, {"input": name, "share": share}, 0.96)


def _permuted(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings of right values in another order, in the whole output or within rows."""
    if evidence.count > LARGEST_SORTED or evidence.count < LEAST_PERMUTED:
        return
    positions = np.flatnonzero(evidence.mask)
    actual, expected = evidence.actual_at(positions), evidence.expected_at(positions)
    if _near(evidence, np.sort(actual), np.sort(expected)) < PERMUTED:
        return
    left = float(np.median(np.abs(np.sort(actual) - np.sort(expected))))
    if left > LEFT * float(np.median(np.abs(actual - expected))):
        return  # hardly wrong at all: sorted values lie as close as the right ones
    rows = positions // max(evidence.columns, 1)
    by_actual, by_expected = np.lexsort((actual, rows)), np.lexsort((expected, rows))
    inside = _near(evidence, actual[by_actual], expected[by_expected]) >= PERMUTED
    where = " within each row" if inside and evidence.rows > 1 else ""
    sentence = f"the wrong elements are the right ones in another order{where}"
    yield Finding("permuted", sentence, {"within_rows": bool(where)}, 0.85)


ENOUGH = 8
"""Fewest elements (or rows) that a border needs on its failing and on its passing side."""

LEAST_RIGHT = 0.05
KNOWN_CAUSE, OTHER_CAUSE = 0.2, 0.01
MOST_ROWS = 256
ROW_ELEMENTS = 1 << 12
TINY = 0.01
"""Share of the largest wrong value below which values are right as no error shows in them."""


def conditions(evidence: Evidence) -> list[Finding]:
    """Find properties that the wrong elements share, other than their indices."""
    failing, passing = evidence.failing, evidence.passing
    found: list[Finding] = []
    right = evidence.total - evidence.count
    # Where nearly all fail, the rest are right only because they are too small to be wrong.
    many = min(evidence.count, right) >= ENOUGH and right >= LEAST_RIGHT * evidence.total
    if many and evidence.plain:
        found += _magnitude(failing, passing)
        found += _input_values(evidence, failing.positions, passing.positions)
    found += _input_rows(evidence)
    return found


def _border(failing: Float64Array, passing: Float64Array, of: str) -> tuple[str, float, str] | None:
    """Find a value that separates the failing from the passing elements, with few exceptions.

    ``"above", v`` means that the failing elements are at least v, and ``"below", v`` that they
    are at most v. The last item says it of `of`. None means that no value separates them.
    """
    failing, passing = failing[~np.isnan(failing)], passing[~np.isnan(passing)]
    if failing.size < ENOUGH or passing.size < ENOUGH:
        return None
    low, high = (float(q) for q in np.quantile(failing, (0.01, 0.99), method="nearest"))
    if np.count_nonzero(passing >= low) <= 0.02 * passing.size:
        nearest = f"{passing[passing < low].max():.4g}"
        return "above", low, f"{of} ≥ {low:.4g} (right up to {nearest})"
    if np.count_nonzero(passing <= high) <= 0.02 * passing.size:
        nearest = f"{passing[passing > high].min():.4g}"
        return "below", high, f"{of} ≤ {high:.4g} (right from {nearest} on)"
    return None


def _magnitude(failing: Points, passing: Points) -> Iterator[Finding]:
    # 0 may be right in spite of a bug; large values may be, as the tolerance grows with them.
    right = np.abs(passing.expected[passing.expected != 0.0])
    wrong = np.abs(failing.expected)
    border = _border(wrong, right, "|expected|")
    if border is not None and border[0] == "above" and border[1] >= TINY * wrong.max():
        side, value, said = border
        numbers = {"side": side, "border": value}
        yield Finding("magnitude", f"only elements with {said} are wrong", numbers, 0.7)


def _input_values(evidence: Evidence, failing: Positions, passing: Positions) -> Iterator[Finding]:
    """Yield a finding if a value of an input separates failing from passing elements."""
    for name, array in evidence.inputs.items():
        if array.shape != evidence.shape or not array.ndim:
            continue
        wrong, right = (
            to_float64(array[np.unravel_index(where, array.shape)]) for where in (failing, passing)
        )
        border = _border(wrong, right, name)
        absolute = border is None
        border = border or _border(np.abs(wrong), np.abs(right), f"|{name}|")
        if border is not None and array.dtype.kind == "b":
            border = (*border[:2], f"{name} = {border[0] == 'above'}")
        elif border is not None and border[0] == "above" and not right.any():
            continue  # whatever is done to an element, zeros stay zeros
        if border is not None:
            side, value, said = border
            numbers = {"input": name, "side": side, "border": value, "absolute": absolute}
            yield Finding("input-value", f"only elements with {said} are wrong", numbers, 0.75)


def _input_rows(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings on properties of an input's rows, if the output has corresponding rows."""
    if evidence.indexed:
        return
    for name, array in evidence.inputs.items():
        if array.ndim < 2 or not array.size or dtype_name(array.dtype) not in FLOAT_LIMITS:
            continue
        leading = array.shape[:-1]
        wrong = _wrong_rows(evidence, leading)
        if wrong is None:
            continue
        bad, good = np.flatnonzero(wrong), np.flatnonzero(~wrong)
        if not bad.size or not good.size:
            continue
        rows = array.reshape(-1, array.shape[-1]) if array.flags.c_contiguous else None
        bad_rows, good_rows = (
            _rows_at(array, rows, spread(which, MOST_ROWS)) for which in (bad, good)
        )
        chance = 1.0 / math.comb(wrong.size, bad.size) if wrong.size <= MOST_ROWS else 0.0
        for what, expected_chance, test in _ROW_TESTS:
            if chance > expected_chance:
                continue
            if test(bad_rows).all() and not test(good_rows).any():
                sentence = f"only rows where {name} {what} are wrong ({bad.size} of {wrong.size})"
                numbers = {"input": name, "holds": what, "rows": int(bad.size)}
                yield Finding("input-row", sentence, numbers, 0.8)
                break


def _wrong_rows(evidence: Evidence, leading: tuple[int, ...]) -> BoolArray | None:
    """Return a mask of the rows of the output: True for rows that contain failing elements.

    `leading` is the shape of an input without its last axis. If the shape of the output begins with
    `leading`, each row of this input has a row of the output: all output elements at the same index
    on these first axes. Otherwise, return None.
    """
    shape = evidence.shape
    if shape[: len(leading)] != leading:
        return None
    by_row = evidence.mask.reshape(int(np.prod(leading)), -1)
    wrong: BoolArray = np.logical_or.reduce(by_row, axis=1)
    return wrong


def _rows_at(array: NDArray[Any], rows: NDArray[Any] | None, which: Positions) -> Float64Array:
    index = np.unravel_index(which, array.shape[:-1])
    taken = array[index] if rows is None else rows[which]
    length = taken.shape[-1]
    if length > ROW_ELEMENTS:
        taken = taken[:, spread(np.arange(length), ROW_ELEMENTS)]
    return to_float64(taken)


# Each with the largest chance of coincidence at which it is reported: known causes of bugs need
# less evidence.
_ROW_TESTS: tuple[tuple[str, float, Callable[[Float64Array], Any]], ...] = (
    ("holds NaN", KNOWN_CAUSE, lambda rows: np.isnan(rows).any(axis=1)),
    ("is -Inf throughout", KNOWN_CAUSE, lambda rows: np.isneginf(rows).all(axis=1)),
    ("holds +Inf", KNOWN_CAUSE, lambda rows: np.isposinf(rows).any(axis=1)),
    ("holds -Inf", KNOWN_CAUSE, lambda rows: np.isneginf(rows).any(axis=1)),
    ("holds NaN or Inf", KNOWN_CAUSE, lambda rows: ~np.isfinite(rows).all(axis=1)),
    ("is all zeros", KNOWN_CAUSE, lambda rows: np.equal(rows, 0).all(axis=1)),
    ("is all negative", OTHER_CAUSE, lambda rows: np.less(rows, 0).all(axis=1)),
    ("is constant", OTHER_CAUSE, lambda rows: np.equal(rows, rows[:, :1]).all(axis=1)),
)
