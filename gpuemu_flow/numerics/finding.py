"""Data of a diagnosis: a sample of one output's elements, and findings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from gpuemu_flow.model.types import Json, Shape
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, Float64Array, dtype_name, to_float64
from gpuemu_flow.numerics.judge import BoolArray
from gpuemu_flow.numerics.layouts import FILLS

Positions = NDArray[np.intp]

SAMPLE = 1 << 15
"""Largest number of elements of a kind (failing, passing) whose values are looked at."""

LINES, LINE_LENGTH = 128, 256
"""Largest number of rows (or columns) that are looked at as such, and of elements of each."""

TILES = (256, 128, 64, 32, 16, 8)
"""Usual widths of tiles, widest first."""

BLOCK = 1 << 20
"""Elements of the mask that are turned into positions at a time."""


class Finding(Struct, frozen=True):
    """One statement that is true of the wrong elements of an output."""

    # Stable name in kebab-case. Each module ``diagnose_*`` lists the kinds that it finds.
    kind: str
    sentence: str  # the statement for people; starts in lower case and has no full stop
    # The statement as data: indices, factors, shares
    numbers: Mapping[str, Json] = field(default_factory=dict)
    # Weight from 0 to 1, by which findings are ordered. It is high if the statement explains much
    # of the failure, and would hardly be true by chance.
    likelihood: float = 0.5


class Points(Struct, frozen=True):
    """Some elements of an output."""

    positions: Positions  # Flat, in C order, ascending
    actual: Float64Array
    expected: Float64Array

    def where(self, chosen: BoolArray) -> Points:
        """Return the points for which `chosen` is set."""
        return Points(self.positions[chosen], self.actual[chosen], self.expected[chosen])

    def __len__(self) -> int:
        return self.positions.size


class Evidence:
    """One output's values and the mask of its wrong elements, with samples of limited size."""

    def __init__(
        self,
        actual: NDArray[Any],
        expected: NDArray[Any],
        failing: BoolArray,
        inputs: Mapping[str, NDArray[Any]],
        *,
        plain: bool = True,
    ) -> None:
        self.shape: Shape = actual.shape
        self.total = actual.size
        self.mask = np.ascontiguousarray(failing)
        self.count = int(np.count_nonzero(self.mask))
        self.inputs = inputs
        self.plain = plain  # no value hides an error, so that right elements tell as much as wrong
        self.dtype = dtype_name(actual.dtype) or ""
        self.fmt = FLOAT_LIMITS.get(self.dtype)
        self.eps = self.fmt.eps if self.fmt is not None else 0.0
        self._actual = actual.reshape(-1)
        self._expected = expected.reshape(-1)

    @cached_property
    def zeros(self) -> int:
        """Return the number of right elements that are 0, as they may be in spite of a bug."""
        right = ~self.mask.reshape(-1)
        return int(np.count_nonzero(right & (self._expected == 0)))

    @property
    def unwritten(self) -> list[float]:
        """Return the values of memory that nobody wrote; none for bytes, which may have any."""
        dtype = self._actual.dtype
        size = dtype.itemsize
        fills = FILLS if size > 1 else ()
        return [float(to_float64(np.frombuffer(fill * size, dtype))[0]) for fill in fills]

    @cached_property
    def given_infinite(self) -> bool:
        floats = (a for a in self.inputs.values() if dtype_name(a.dtype) in FLOAT_LIMITS)
        return any(np.isinf(to_float64(array)).any() for array in floats)

    @cached_property
    def indexed(self) -> bool:
        """Tell whether an input may hold indices: rows of a table are no rows of the output."""
        return any(array.dtype.kind in "iu" and array.ndim for array in self.inputs.values())

    @property
    def columns(self) -> int:
        """Return the length of the last axis; a scalar counts as a row of one element."""
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        """Return the number of rows; each has `columns` elements."""
        return self.total // max(self.columns, 1)

    @property
    def dims(self) -> tuple[int, ...]:
        """Return the sizes of all axes of the output and the inputs, without repetition."""
        shapes = [self.shape, *(array.shape for array in self.inputs.values())]
        return tuple(dict.fromkeys(size for shape in shapes for size in shape))

    @property
    def expected(self) -> NDArray[Any]:
        return self._expected.reshape(self.shape)

    def at(self, positions: Positions) -> Points:
        """Return the elements at flat positions."""
        return Points(positions, self.actual_at(positions), self.expected_at(positions))

    def actual_at(self, positions: Positions) -> Float64Array:
        return to_float64(self._actual[positions])

    def expected_at(self, positions: Positions) -> Float64Array:
        return to_float64(self._expected[positions])

    @cached_property
    def failing(self) -> Points:
        """Return a sample of the failing elements, spread evenly over all of them."""
        return self.at(some_positions(self.mask.reshape(-1), self.count))

    @cached_property
    def passing(self) -> Points:
        """Return a sample of the passing elements, spread evenly over all of them."""
        return self.at(some_positions(~self.mask.reshape(-1), self.total - self.count))

    @cached_property
    def finite(self) -> Points:
        """Return the elements of `failing` whose actual and expected values are finite."""
        points = self.failing
        return points.where(np.isfinite(points.actual) & np.isfinite(points.expected))

    def lines(self, axis: int) -> tuple[Points, BoolArray]:
        """Return some rows (axis -1) or columns (axis -2) with failures, as a grid."""
        rows, columns = self.rows, self.columns
        grid = self.mask.reshape(rows, columns)
        counts = count_along(grid, 0 if axis == -1 else 1)
        ranked = np.flatnonzero(counts)
        lines = spread(ranked, LINES)
        members = spread(np.arange(columns if axis == -1 else rows), LINE_LENGTH)
        stride, step = (columns, 1) if axis == -1 else (1, columns)
        positions = lines[:, None] * stride + members[None, :] * step
        flat = self.at(positions.reshape(-1))
        shape = positions.shape
        points = Points(positions, flat.actual.reshape(shape), flat.expected.reshape(shape))
        wrong = self.mask.reshape(-1)[positions]
        return points, wrong & np.isfinite(points.actual) & np.isfinite(points.expected)


def count_along(mask: BoolArray, axis: int) -> NDArray[np.int64]:
    """Count the marked elements at each index of one axis."""
    others = tuple(a for a in range(mask.ndim) if a != axis)
    if not others:
        return mask.astype(np.int64)
    counts: NDArray[np.int64] = np.add.reduce(mask.view(np.uint8), axis=others, dtype=np.int64)
    return counts


def spread(values: Positions, limit: int) -> Positions:
    """Return at most `limit` of the values: the first, the last, and others spread evenly."""
    if values.size <= limit:
        return values
    return values[np.linspace(0, values.size - 1, limit).astype(np.intp)]


def some_positions(mask: BoolArray, count: int) -> Positions:
    """Return at most `SAMPLE` positions where a flat mask is set, ascending.

    They are spread evenly and then shifted by a golden-ratio sequence, since an even step could
    coincide with the period of the tiles. `count` is the number of elements that `mask` marks.
    """
    if count <= SAMPLE:
        return np.flatnonzero(mask)
    turns = np.arange(SAMPLE)
    jitter = (turns * 0.6180339887498949) % 1.0
    ranks = np.unique(np.floor((turns + jitter) * (count / SAMPLE)).astype(np.int64))
    ranks = np.minimum(ranks, count - 1)
    ranks[0], ranks[-1] = 0, count - 1
    found: list[Positions] = []
    before = 0
    for start in range(0, mask.size, BLOCK):
        here = np.flatnonzero(mask[start : start + BLOCK])
        wanted = ranks[(ranks >= before) & (ranks < before + here.size)] - before
        found.append(here[wanted] + start)
        before += here.size
    return np.concatenate(found)
