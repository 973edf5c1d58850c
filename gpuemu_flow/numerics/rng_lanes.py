"""Draw many values at once, by generators that advance together (lanes).

The lanes start far apart in one stream, or each at the start of its own stream. Their states
are rows of uint64; transposing the drawn values puts them into the order of the stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.numerics.rng_jump import (
    GROUP_LANES,
    PREFIX,
    SHIFT_17,
    SHIFT_23,
    SHIFT_26,
    Words,
    lane_table,
    place_lanes,
    prefix_table,
    words_after,
)
from gpuemu_flow.numerics.rng_words import State

LOOKUP_LIMIT = 4 * PREFIX  # up to it, look-ups beat lanes, which are then too few to be cheap
SHORT_STRIDE = 48  # values per lane: fewer make longer rows, hence fewer calls of numpy per value,
LONG_STRIDE = 128  # more make fewer lanes, hence fewer look-ups
SHORT_LIMIT = 1 << 17
MAX_LANES = 12 * GROUP_LANES  # no power of two, so that a column's elements share no cache set
TILE = 16  # steps between two transpositions, a cache line of float32; divides the strides
CACHED_WIDTHS = 16


class Conversion(Struct, frozen=True):
    """The conversion of words to values."""

    dtype: np.dtype[Any]  # Dtype of the values
    # Takes uint64 words, which it may overwrite, and an array of `dtype` to write into
    convert: Callable[[Words, NDArray[Any]], None]


class RandomLanes:
    """A row of lanes that advance `TILE` steps at a time, with their work arrays."""

    def __init__(self, lanes: int, rows: Words, words: Words, values: Words) -> None:
        self._rows = rows[: (TILE + 2) * lanes].reshape(TILE + 2, lanes)
        self._words = words[: TILE * lanes].reshape(TILE, lanes)
        self._values = values[: TILE * lanes]
        self.starts = self._rows[:2]
        self._ends = self._rows[TILE:]
        self._older = self._rows[1 : TILE + 1]
        self._newer = self._rows[2:]
        row = self._rows
        self._steps = [
            (row[k : k + 2], row[k + 2 : k + 4], row[k + 1], row[k + 2], row[k + 3])
            for k in range(0, TILE, 2)
        ]

    @property
    def last_state(self) -> State:
        """Return the last lane's state."""
        return int(self.starts[0, -1]), int(self.starts[1, -1])

    def draw_columns(self, conversion: Conversion, block: NDArray[Any]) -> None:
        """Fill `block` with drawn values, one row for each lane.

        The number of columns must be a multiple of `TILE`.
        """
        tile = self._values.view(conversion.dtype)[: self._words.size].reshape(self._words.shape)
        for done in range(0, block.shape[1], TILE):
            self._advance()
            np.bitwise_xor(self._newer, self._older, self._words)
            np.add(self._words, self._older, self._words)
            conversion.convert(self._words, tile)
            block[:, done : done + TILE] = tile.T
            self.starts[...] = self._ends

    def _advance(self) -> None:
        """Advance all lanes by `TILE` steps, computing two steps at a time.

        This is possible because only the last term of a step depends on the preceding step.
        """
        spare, spare_row = self._words[:2], self._words[0]
        # The output as third argument: a keyword costs a third of the call at these widths.
        for two_older, two_newest, newer, first, second in self._steps:
            np.left_shift(two_older, SHIFT_23, two_newest)
            np.bitwise_xor(two_newest, two_older, two_newest)
            np.right_shift(two_newest, SHIFT_17, spare)
            np.bitwise_xor(two_newest, spare, two_newest)
            np.right_shift(newer, SHIFT_26, spare_row)
            np.bitwise_xor(first, spare_row, first)
            np.right_shift(first, SHIFT_26, spare_row)
            np.bitwise_xor(second, spare_row, second)


class _Workspace(threading.local):
    """The work arrays of one thread; they are not shared, as threads may switch within a step."""

    def __init__(self) -> None:
        self._rows = np.empty((TILE + 2) * MAX_LANES, dtype=np.uint64)
        self._words = np.empty(TILE * MAX_LANES, dtype=np.uint64)
        self._values = np.empty(TILE * MAX_LANES, dtype=np.uint64)
        self._by_width: dict[int, RandomLanes] = {}

    def lanes(self, count: int) -> RandomLanes:
        """Return `count` lanes (at most `MAX_LANES`) that use this thread's arrays."""
        found = self._by_width.get(count)
        if found is None:
            if len(self._by_width) >= CACHED_WIDTHS:
                self._by_width.clear()
            found = RandomLanes(count, self._rows, self._words, self._values)
            self._by_width[count] = found
        return found


_workspace = _Workspace()


def fill(state: State, count: int, conversion: Conversion) -> tuple[NDArray[Any], State]:
    """Return the next `count` values and the state after them."""
    if count > LOOKUP_LIMIT:
        return _fill_by_lanes(state, count, conversion)
    values = np.empty(count, dtype=conversion.dtype)
    for first in range(0, count, PREFIX):
        piece = values[first : first + PREFIX]
        words = words_after(state, piece.size)
        outputs = words[2:] ^ words[1:-1]
        outputs += words[1:-1]
        conversion.convert(outputs, piece)
        state = int(words[-2]), int(words[-1])
    return values, state


def _fill_by_lanes(state: State, count: int, conversion: Conversion) -> tuple[NDArray[Any], State]:
    stride = SHORT_STRIDE if count <= SHORT_LIMIT else LONG_STRIDE
    lane_count = -(-count // stride)
    # The last lane is drawn in full; what exceeds `count` is cut off the array.
    values = np.empty((lane_count, stride), dtype=conversion.dtype)
    for first in range(0, lane_count, MAX_LANES):
        block = values[first : first + MAX_LANES]
        lanes = _workspace.lanes(len(block))
        place_lanes(stride, state, lanes.starts)
        last_start = lanes.last_state
        lanes.draw_columns(conversion, block)
        state = lanes.last_state
    drawn_by_last = count - (lane_count - 1) * stride
    if drawn_by_last < stride:
        words = words_after(last_start, drawn_by_last)
        state = int(words[-2]), int(words[-1])
    return values.reshape(-1)[:count], state


def warm_up() -> None:
    """Build the jump tables now, some 12 MiB in all, rather than at the first draw."""
    prefix_table()
    lane_table(SHORT_STRIDE)
    lane_table(LONG_STRIDE)
