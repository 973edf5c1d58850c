"""The settings for drawing an input's values by a rule, with the bounds already computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.cases.rows import Rows
from gpuemu_flow.model.types import DTYPES, Number, Shape, ValueRule
from gpuemu_flow.numerics.rng import SeededRng

Array = NDArray[Any]
Ints = NDArray[np.int64]


class Setting(Struct, frozen=True):
    """The settings that determine the values of one input that follows a rule."""

    rng: SeededRng
    shape: Shape
    dtype: str
    pattern: str  # the case's strategy if the input's kind has it, else the kind's first strategy
    rule: ValueRule
    # Bounds, both included
    low: Number | None = None
    high: Number | None = None
    # For an input that holds offsets, the last offset. For one that holds lengths, the largest
    # length.
    to: int | None = None
    total: int | None = None  # sum of the values
    size: int | None = None  # size of the axis that indices point into

    @property
    def floating(self) -> bool:
        return DTYPES[self.dtype].kind == "float"

    @property
    def width(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def count(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def rows(self) -> Rows:
        return Rows(self.rng, self.count // self.width, self.count)

    def integer_bounds(self, low: int, high: int) -> tuple[int, int]:
        """Return the bounds as integers, limited to the range of the dtype. `low` and `high` are
        the defaults for missing bounds."""
        first = low if self.low is None else int(np.ceil(self.low))
        last = max(high, first) if self.high is None else int(np.floor(self.high))
        if self.low is None and last < first:
            first = last
        if DTYPES[self.dtype].kind in ("int", "uint"):
            info = np.iinfo(self.dtype)
            first, last = max(first, int(info.min)), min(last, int(info.max), (1 << 63) - 2)
        return first, max(last, first)

    def draw(self, low: int, last: int) -> Ints:
        """Draw integers from `low` to `last`, both included. The result has the shape (number of
        rows, `width`)."""
        return self.rng.ranges(self.count, low, last + 1).reshape(self.rows.shape)

    def order(self) -> Ints:
        words = self.rng.derive("order").u64(self.count).reshape(self.rows.shape)
        return np.argsort(words, axis=1, kind="stable").astype(np.int64)


class Kind(Struct, frozen=True):
    """A kind of input."""

    # Takes a `Setting`, and returns values as int64 or float64. The values are not yet rounded to
    # the setting's dtype. Their shape is the setting's, or (number of rows, `Setting.width`).
    draw: Callable[[Setting], Array]
    # Takes values and a `Setting`, and returns similar values that satisfy the setting's rule; None
    # if there are none
    fit: Callable[[Array, Setting], Array | None]
