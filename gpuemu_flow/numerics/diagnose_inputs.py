"""Diagnose by condition: errors at some magnitudes, for some inputs, or growing along an axis.

==================  ==============================================================================
kind                finding
==================  ==============================================================================
``magnitude``       elements fail only where the reference is above, or below, some magnitude
``input-value``     elements fail only if the input at the same index is above, or below, a value
``input-row``       elements fail only if an input's row has a property, such as NaN or large values
``growing``         the errors become larger and larger along an axis
==================  ==============================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, to_float64
from gpuemu_flow.numerics.finding import Evidence, Finding, Points, Positions, spread
from gpuemu_flow.numerics.judge import BoolArray
from gpuemu_flow.numerics.ulp import Float64Array

ENOUGH = 8
"""Fewest elements (or rows) that a border needs on its failing and on its passing side."""

LEAST_RIGHT = 0.05
KNOWN_CAUSE, OTHER_CAUSE = 0.2, 0.01
MOST_ROWS = 256
ROW_ELEMENTS = 1 << 12
BINS = 8


def conditions(evidence: Evidence) -> list[Finding]:
    """Find properties that the wrong elements share, other than their indices."""
    failing, passing = evidence.failing, evidence.passing
    found: list[Finding] = []
    right = evidence.total - evidence.count
    # Where nearly all fail, the rest are right only because they are too small to be wrong.
    if min(evidence.count, right) >= ENOUGH and right >= LEAST_RIGHT * evidence.total:
        found += _magnitude(failing, passing)
        found += _input_values(evidence, failing.positions, passing.positions)
    found += _input_rows(evidence)
    found += _growing(evidence)
    return found


def _border(failing: Float64Array, passing: Float64Array) -> tuple[str, float] | None:
    """Find a value that separates the failing from the passing elements, with few exceptions.

    ``("above", v)`` means that the failing elements are at least v, and ``("below", v)`` that they
    are at most v. None means that no value separates them.
    """
    failing, passing = failing[~np.isnan(failing)], passing[~np.isnan(passing)]
    if failing.size < ENOUGH or passing.size < ENOUGH:
        return None
    low, high = (float(q) for q in np.quantile(failing, (0.01, 0.99), method="nearest"))
    if np.count_nonzero(passing >= low) <= 0.02 * passing.size:
        return "above", low
    if np.count_nonzero(passing <= high) <= 0.02 * passing.size:
        return "below", high
    return None


def _magnitude(failing: Points, passing: Points) -> Iterator[Finding]:
    border = _border(np.abs(failing.expected), np.abs(passing.expected))
    if border is None:
        return
    side, value = border
    sign = "≥" if side == "above" else "≤"
    sentence = f"only elements with |expected| {sign} {value:.4g} are wrong"
    yield Finding("magnitude", sentence, {"side": side, "border": value}, 0.7)


def _input_values(evidence: Evidence, failing: Positions, passing: Positions) -> Iterator[Finding]:
    """Yield a finding if a value of an input separates failing from passing elements."""
    for name, array in evidence.inputs.items():
        if array.shape != evidence.shape or not array.ndim:
            continue
        wrong, right = (
            to_float64(array[np.unravel_index(where, array.shape)]) for where in (failing, passing)
        )
        border = _border(wrong, right)
        of = name
        if border is None:
            border, of = _border(np.abs(wrong), np.abs(right)), f"|{name}|"
        if border is not None:
            side, value = border
            sign = "≥" if side == "above" else "≤"
            sentence = f"only elements with {of} {sign} {value:.4g} are wrong"
            numbers = {"input": name, "side": side, "border": value, "absolute": of != name}
            yield Finding("input-value", sentence, numbers, 0.75)


def _input_rows(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings on properties of an input's rows, if the output has corresponding rows."""
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
        else:
            yield from _row_border(name, bad_rows, good_rows)


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


def _row_border(name: str, bad: Float64Array, good: Float64Array) -> Iterator[Finding]:
    """Yield a finding if a measure of rows, such as their spread, separates bad from good rows."""
    for what, measure in _ROW_MEASURES:
        border = _border(measure(bad), measure(good))
        if border is not None:
            side, value = border
            sign = "≥" if side == "above" else "≤"
            sentence = f"only rows where {what} of {name} is {sign} {value:.4g} are wrong"
            numbers = {"input": name, "measure": what, "side": side, "border": value}
            yield Finding("input-row", sentence, numbers, 0.7)
            return


# Each with the largest chance of coincidence at which it is reported: known causes of bugs need
# less evidence.
_ROW_TESTS: tuple[tuple[str, float, Callable[[Float64Array], Any]], ...] = (
    ("holds NaN", KNOWN_CAUSE, lambda rows: np.isnan(rows).any(axis=1)),
    ("is -Inf throughout", KNOWN_CAUSE, lambda rows: np.isneginf(rows).all(axis=1)),
    ("holds +Inf", KNOWN_CAUSE, lambda rows: np.isposinf(rows).any(axis=1)),
    ("holds -Inf", KNOWN_CAUSE, lambda rows: np.isneginf(rows).any(axis=1)),
    ("holds NaN or Inf", KNOWN_CAUSE, lambda rows: ~np.isfinite(rows).all(axis=1)),
    ("is all zeros", KNOWN_CAUSE, lambda rows: np.equal(rows, 0).all(axis=1)),
    ("is constant", OTHER_CAUSE, lambda rows: np.equal(rows, rows[:, :1]).all(axis=1)),
    ("is all negative", OTHER_CAUSE, lambda rows: np.less(rows, 0).all(axis=1)),
    (
        "holds ties",
        OTHER_CAUSE,
        lambda rows: np.equal(np.diff(np.sort(rows, axis=1), axis=1), 0).any(axis=1),
    ),
)

_ROW_MEASURES: tuple[tuple[str, Callable[[Float64Array], Float64Array]], ...] = (
    ("the largest magnitude", lambda rows: np.abs(rows).max(axis=1)),
    ("the largest value", lambda rows: rows.max(axis=1)),
    ("the spread", lambda rows: np.ptp(rows, axis=1)),
    ("|mean| / spread", lambda rows: np.abs(rows.mean(axis=1)) / np.ptp(rows, axis=1)),
)


def _growing(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings of errors that grow steadily along an axis, at least by a factor of 10."""
    points = evidence.finite
    if len(points) < 4 * BINS:
        return
    error = np.abs(points.actual - points.expected)
    index = np.unravel_index(points.positions, evidence.shape)
    for axis, size in enumerate(evidence.shape):
        if size < 2 * BINS:
            continue
        bins = index[axis] * BINS // size
        number = np.bincount(bins, minlength=BINS)
        if (number == 0).any():
            continue
        mean = np.bincount(bins, weights=error, minlength=BINS) / number
        if (np.diff(mean) > 0).all() and mean[-1] > 10 * mean[0] > 0:
            sentence = f"the error grows along axis {axis}, from {mean[0]:.2g} to {mean[-1]:.2g}"
            numbers = {"axis": axis, "first": float(mean[0]), "last": float(mean[-1])}
            yield Finding("growing", sentence, numbers, 0.55)
