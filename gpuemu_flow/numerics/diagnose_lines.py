"""Rows or columns that are each off by a different factor or offset.

A factor per row comes from a wrong denominator, norm or rescaling. A factor or an offset per column
comes from weights or a bias that are missing, or that are read from the wrong place. The kinds of
these findings are ``row-factor``, ``row-offset``, ``column-factor`` and ``column-offset``.

Another kind of finding is ``low-rank``: the error matrix is a sum of a few terms, each of which is
the product of a number per row and a number per column. Possible causes are missing terms of a
matrix product, or a wrong mean before weights are applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from msgspec import Struct

from gpuemu_flow.numerics.diagnose_values import FEW, fit_factor, fit_offset
from gpuemu_flow.numerics.dtypes import dtype_name, to_float64
from gpuemu_flow.numerics.finding import Evidence, Finding, Points, Positions
from gpuemu_flow.numerics.judge import BoolArray
from gpuemu_flow.numerics.ulp import Float64Array

Fit = Callable[[Float64Array, Float64Array, int], tuple[float, float] | None]

MOST_LINES = 0.9
"""Share of the lines (those with enough wrong elements) that must fit."""

LEAST, FREEDOM = 2, 6
"""Fewest wrong elements of a line, and of all lines together after one per line is deducted."""

LEAST_RANK, GAP, LARGEST_ERROR = 6, 0.05, 1e150

EXPLAINED, OFF = 0.75, 0.25
"""Share of wrong elements that few products must explain, and how far each may be off."""


def line_relations(evidence: Evidence) -> list[Finding]:
    """Return findings that each row or column is off by a different factor or offset.

    If there is no such finding for the rows, look for an error matrix of low rank.
    """
    if len(evidence.shape) < 2 or evidence.fmt is None or evidence.count < 2 * FEW:
        return []
    found = []
    for axis, name in ((-1, "row"), (-2, "column")):
        if min(evidence.rows, evidence.columns) < LEAST:
            continue
        points, wrong = evidence.lines(axis)
        number = wrong.sum(axis=1)
        usable = np.flatnonzero(number >= LEAST)
        inside = int(number[usable].sum())
        # One number per line is fitted: what is left over has to carry the conclusion.
        if usable.size < 2 or inside < 0.5 * wrong.sum() or inside - usable.size < FREEDOM:
            continue
        lines = _Lines(name, points, wrong, usable)
        found += [*_factors(lines), *_offsets(evidence, lines)]
        if axis == -1 and not found:
            found += _low_rank(points, wrong)
    return found


class _Lines(Struct, frozen=True):
    """Some rows, or some columns, of an output."""

    name: str  # ``row`` or ``column``: the kind of line
    points: Points  # Arrays of shape (lines, elements of a line)
    wrong: BoolArray  # Mask of the elements that fail and are finite
    usable: Positions  # Indices of the lines with at least `LEAST` wrong elements

    def fits(self, fit: Fit) -> list[float]:
        """Fit a number, such as a factor, to the wrong elements of each usable line.

        Return the fitted numbers in the order of the lines, leaving out lines that no number fits.
        The list is empty if a number fits less than a share of `MOST_LINES` of the usable lines, or
        if all numbers are nearly equal.
        """
        fits = [
            fit(self.points.actual[i][self.wrong[i]], self.points.expected[i][self.wrong[i]], LEAST)
            for i in self.usable
        ]
        known = [number for number, _ in (found for found in fits if found is not None)]
        return known if len(known) >= MOST_LINES * len(fits) and _varied(known) else []


def _factors(lines: _Lines) -> Iterator[Finding]:
    known = lines.fits(fit_factor)
    if known:
        low, high = min(known), max(known)
        sentence = f"each {lines.name} is off by a factor of its own, {low:.3g} to {high:.3g}"
        yield Finding(f"{lines.name}-factor", sentence, {"low": low, "high": high}, 0.88)


def _offsets(evidence: Evidence, lines: _Lines) -> Iterator[Finding]:
    known = lines.fits(fit_offset)
    if not known:
        return
    low, high = min(known), max(known)
    sentence = f"each {lines.name} is off by an offset of its own, {low:.3g} to {high:.3g}"
    source = ""
    if len(known) == lines.usable.size:
        first = lines.points.positions[lines.usable, 0]
        columns = evidence.columns
        index = first % columns if lines.name == "column" else first // columns
        source = _source(evidence, np.array(known), index)
    if source:
        sentence += f": {source}"
    numbers = {"low": low, "high": high, "source": source}
    yield Finding(f"{lines.name}-offset", sentence, numbers, 0.9 if source else 0.86)


def _low_rank(points: Points, wrong: BoolArray) -> Iterator[Finding]:
    """Yield a finding if the error matrix has few large singular values, and then a sharp drop."""
    if min(wrong.shape) < LEAST_RANK or wrong.mean() < 0.5:
        return
    error = np.where(wrong, points.actual - points.expected, 0.0)
    size = float(np.abs(error).max())
    if not 0.0 < size < LARGEST_ERROR:
        return
    error /= size
    singular = np.linalg.svd(error, compute_uv=False)
    most = min(wrong.shape) // 3
    rank = 1 + int(np.argmin(singular[1 : most + 1] / singular[:most]))
    if singular[rank] > GAP * singular[rank - 1] or singular[rank - 1] < GAP * singular[0]:
        return
    if not _explains(error, wrong, rank):
        return
    if rank == 1:
        sentence = "the error is a number of each row times a number of each column (rank 1)"
    else:
        sentence = f"the error is a sum of {rank} products of a number per row and one per column "
        sentence += f"(rank {rank}): so many terms are missing or wrong"
    yield Finding("low-rank", sentence, {"rank": rank}, 0.75)


def _explains(error: Float64Array, wrong: BoolArray, rank: int) -> bool:
    """Tell whether a matrix of low rank is close to the error in most wrong elements.

    The matrix is the sum of the first `rank` terms of the singular value decomposition of `error`.
    The singular values alone do not show that it is close: a few elements that are far larger than
    all others can determine the largest singular values.
    """
    left, singular, right = np.linalg.svd(error, full_matrices=False)
    rest = np.abs(error - (left[:, :rank] * singular[:rank]) @ right[:rank])
    return bool(np.mean(rest[wrong] <= OFF * np.abs(error[wrong])) >= EXPLAINED)


def _varied(fitted: list[float]) -> bool:
    """Tell whether the numbers are not all the same."""
    return max(fitted) - min(fitted) > 1e-3 * max(abs(number) for number in fitted)


def _source(evidence: Evidence, offsets: Float64Array, index: Positions) -> str:
    """Return ``minus b`` or ``b once more`` if the op left out or doubled a 1-d input b."""
    for name, array in evidence.inputs.items():
        if array.ndim != 1 or dtype_name(array.dtype) is None or array.size <= int(index.max()):
            continue
        values = to_float64(array[index])
        for factor, words in ((-1.0, f"minus {name}"), (1.0, f"{name} once more")):
            if np.allclose(offsets, factor * values, rtol=1e-2, atol=1e-3 * np.abs(values).max()):
                return words
    return ""
