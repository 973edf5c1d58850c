"""Right values in wrong places: swapped axes, shifted or stale rows, copies of an input.

==================  ==============================================================================
kind                the failing elements are
==================  ==============================================================================
``transposed``      the reference's with two axes of equal size swapped
``memory-order``    the reference's with two axes swapped, but read in the original memory order
``reversed``        the reference's from the other end of an axis
``shifted``         the reference's at a fixed distance along an axis, as in stale rows
``repeated``        the reference's first row, or first tile, over and over
``input-copy``      an input's
``permuted``        the reference's in another order
==================  ==============================================================================
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from gpuemu_flow.numerics.dtypes import to_float64
from gpuemu_flow.numerics.finding import Evidence, Finding, Points, Positions, spread
from gpuemu_flow.numerics.ulp import Float64Array

MOST = 0.9
LEFT = 0.1
LOOKED_AT = 4096
DISTANCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LARGEST_SORTED = 1 << 16
LEAST_PERMUTED = 8
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
    if np.unique(points.expected).size < max(3, len(points) // 4):
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
    """Yield findings that two axes of the reference's output are swapped in the op's output.

    If the axes have equal sizes, the op's output is the reference's output with these axes
    transposed. If their sizes differ, the op's output has the right shape, but a tensor with
    swapped axes was read or written in memory order; see `_reread` and `_rewritten`.
    """
    shape = evidence.shape
    index = np.unravel_index(points.positions, shape)
    for i, j in itertools.combinations(range(len(shape)), 2):
        if min(shape[i], shape[j]) < 2:
            continue
        axes = f"axes {i} and {j}"
        if shape[i] == shape[j]:
            swapped = list(index)
            swapped[i], swapped[j] = swapped[j], swapped[i]
            share = _agreement(evidence, points, np.ravel_multi_index(swapped, shape))
            if share >= MOST:
                sentence = f"actual is expected with {axes} swapped"
                yield Finding("transposed", sentence, {"axes": [i, j], "share": share}, 0.97)
        other = list(shape)
        other[i], other[j] = other[j], other[i]
        for source, words in (
            (_reread(points.positions, tuple(other), i, j, shape), "read in memory order"),
            (_rewritten(index, tuple(other), i, j), "written in memory order"),
        ):
            if shape[i] != shape[j]:
                share = _agreement(evidence, points, source)
                if share >= MOST:
                    sentence = f"actual is expected with {axes} swapped and {words}"
                    numbers = {"axes": [i, j], "share": share}
                    yield Finding("memory-order", sentence, numbers, 0.96)


def _reread(positions: Positions, other: tuple[int, ...], i: int, j: int,
            shape: tuple[int, ...]) -> Positions:  # fmt: skip
    """Return the source of each element in ``expected.swapaxes(i, j).reshape(shape)``."""
    index = list(np.unravel_index(positions, other))
    index[i], index[j] = index[j], index[i]
    return np.asarray(np.ravel_multi_index(index, shape), np.intp)


def _rewritten(index: tuple[Positions, ...], other: tuple[int, ...], i: int, j: int) -> Positions:
    """Return the source of each element in ``expected.reshape(other).swapaxes(i, j)``."""
    swapped = list(index)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    return np.asarray(np.ravel_multi_index(swapped, other), np.intp)


def _along_axes(evidence: Evidence, points: Points) -> Iterator[Finding]:
    """Find shifts, repetitions and reversals along each axis."""
    shape = evidence.shape
    index = np.unravel_index(points.positions, shape)
    for axis, size in enumerate(shape):
        if size < 2:
            continue
        here = index[axis]
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
            if share >= MOST:
                where = f"{abs(distance)} {'before' if distance < 0 else 'behind'}"
                sentence = f"actual is the expected value of the {name} {where} (stale or shifted)"
                numbers = {"axis": axis, "distance": distance, "share": share}
                yield Finding("shifted", sentence, numbers, 0.96)
                return
        if _agreement(evidence, points, source(size - 1 - here)) >= MOST:
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
