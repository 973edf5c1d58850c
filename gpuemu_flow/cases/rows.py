"""The rows of tensors that are being drawn, random choices in them, and the values of integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.rng_arrays import SeededStreams

Array = NDArray[Any]
Element = TypeVar("Element", bound=np.generic)


class ManyRows(Struct, frozen=True):
    """The rows (along the last axis) of several tensors of one shape, and their random streams.
    Each array that a method returns has one more axis, the first, for the tensors."""

    # One random stream for each tensor, from which its values are drawn. Each kind of random choice
    # uses other streams, which are derived from these.
    rngs: SeededStreams
    number: int  # number of rows of one tensor, at least 1
    count: int  # number of elements of one tensor, at least 1
    # Selects the kind of a tensor's first row: 1 selects the first kind, 2 the second, and so on.
    # If `turn` is 0, or if there are at least as many rows as kinds, the choice is random.
    turn: int = 0

    @property
    def width(self) -> int:
        return self.count // self.number

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.rngs), self.number, self.width

    def _turns_from(self, kinds: int, first: int = 0) -> NDArray[np.int64]:
        """Return the kind of each tensor's first row, from 0 to `kinds` - 1. If `turn` is 0, or if
        there are at least `kinds` rows, the kind is random. Otherwise it is `first` if `turn` is 1,
        the next kind if `turn` is 2, and so on."""
        if self.turn and self.number < kinds:
            return np.full(len(self.rngs), (self.turn - 1 + first) % kinds)
        return self.rngs.derive("turns").gen_range(0, kinds)

    def turns(self, kinds: int, first: int = 0) -> NDArray[np.int64]:
        """Return a kind for each row: the kinds 0 to `kinds` - 1 in rotation. The attribute `turn`
        decides the kind of a tensor's first row. If `turn` is 0, or if there are at least `kinds`
        rows, this kind is random. Otherwise it is `first` if `turn` is 1, the next kind if `turn`
        is 2, and so on."""
        start = self._turns_from(kinds, first)
        return (np.arange(self.number, dtype=np.int64) + start[:, None]) % kinds

    def every(self, kinds: int) -> NDArray[np.bool_]:
        """Return a mask of every `kinds`-th row. If a tensor has several rows, at least one of them
        is marked, and at least one is not."""
        marked: NDArray[np.bool_] = self.turns(kinds) == 0
        if 1 < self.number < kinds:
            marked[~marked.any(axis=1), 0] = True
        return marked

    def some_row(self) -> NDArray[np.int64]:
        return self.rngs.derive("row").gen_range(0, self.number)

    def random_columns(self) -> NDArray[np.int64]:
        return self.rngs.derive("columns").ranges(self.number, 0, self.width)

    def coin_flips(self) -> NDArray[np.bool_]:
        """Return a mask of about half of the elements, chosen at random."""
        words = self.rngs.derive("flips").u64(-(-self.count // 64))
        bits = np.unpackbits(words.astype("<u8").view(np.uint8), axis=1, count=self.count)
        return bits.view(np.bool_).reshape(self.shape)

    def sparse_zeros(self) -> NDArray[np.bool_]:
        """Return a mask of the elements that are to be 0: about half of them, chosen at random. If
        there are several rows, all elements of every eighth row are marked, except for one at a
        random position. If this element lies in the last tile of the row, the op's result shows
        whether the op reads that tile. If there is only one row, its last element is not marked,
        and its first one is. If `turn` is above 0, the whole first half of this row is marked."""
        zeros = self.coin_flips()
        if self.number > 1:
            alone = self.every(8)
            zeros[alone] = True
            tensors, rows = np.nonzero(alone)
            zeros[tensors, rows, self.random_columns()[alone]] = False
        elif self.width > 1:
            marked = max(1, self.width // 2) if self.turn else 1
            zeros[:, 0, :marked], zeros[:, 0, -1] = True, False
        return zeros

    def few_values(self, palette: Array) -> Array:
        """Draw rows of values of a palette. The first kind of row uses one value of the palette,
        the second two and the third four. The kinds take turns."""
        rngs = self.rngs.derive("palette")
        few = palette[rngs.shuffled(palette.size)[:, :4]]
        values = np.empty(self.shape, palette.dtype)
        starts = self._turns_from(3, 1)
        for start in sorted(set(starts.tolist())):
            turns = (np.arange(self.number) + start) % 3
            if self.number > 1 and not (turns == 0).any():
                turns[0] = 0
            constant, two, four = (turns == kind for kind in range(3))
            some = np.flatnonzero(starts == start)
            streams = rngs if some.size == len(starts) else rngs.some(some)
            drawn = np.empty((some.size, *self.shape[1:]), palette.dtype)
            chosen = streams.ranges(int(constant.sum()), 0, palette.size)
            drawn[:, constant] = palette[chosen][..., None]
            for rows, choice in ((two, few[some, :2]), (four, few[some])):
                shape = (some.size, int(rows.sum()), self.width)
                count = shape[1] * self.width
                drawn[:, rows] = picked(streams, choice, count).reshape(shape)
            values[some] = drawn
        return values

    def of_palette(self, palette: Array, chosen: NDArray[np.bool_]) -> Array:
        """Draw random elements of a palette to fill the rows that the mask `chosen` marks. The mask
        has the shape (tensors, rows per tensor). The result has one row for each marked row, in the
        order of the tensors: its shape is (marked rows, `width`)."""
        numbers = chosen.sum(axis=1)
        most = int(numbers.max())
        places = self.rngs.derive("raw").ranges(most * self.width, 0, palette.size)
        drawn: Array = palette[places].reshape(len(numbers), most, self.width)
        chosen_rows: Array = drawn[np.arange(most) < numbers[:, None]]
        return chosen_rows


def picked(rngs: SeededStreams, palettes: Array, count: int) -> Array:
    """Draw `count` random elements of each palette, with the random stream of the same index.
    `palettes` has one palette per row. The result has the shape (palettes, `count`)."""
    size = palettes.shape[1]
    chosen = rngs.ranges(count, 0, size)
    chosen += np.arange(0, len(rngs) * size, size)[:, None]
    return palettes.take(chosen)


def _only(many: NDArray[Element]) -> NDArray[Element]:
    one: NDArray[Element] = many[0]
    return one


class Rows(Struct, frozen=True):
    """The rows (along the last axis) of one tensor, and its generator; see `ManyRows`."""

    rng: SeededRng
    number: int
    count: int

    @property
    def width(self) -> int:
        return self.count // self.number

    @property
    def shape(self) -> tuple[int, int]:
        return self.number, self.width

    @property
    def _alone(self) -> ManyRows:
        return ManyRows(SeededStreams([self.rng.seed]), self.number, self.count)

    def every(self, kinds: int) -> NDArray[np.bool_]:
        return _only(self._alone.every(kinds))

    def random_columns(self) -> NDArray[np.int64]:
        return _only(self._alone.random_columns())

    def coin_flips(self) -> NDArray[np.bool_]:
        return _only(self._alone.coin_flips())

    def few_values(self, palette: Array) -> Array:
        return _only(self._alone.few_values(palette))


INT64_END = 1 << 63
TIES = (0, 1, 2, 3, 5, -1, -2, -3)
_ALONE = {"sparse": True, "special": False}
"""The value that occurs only once in some rows of booleans, by strategy."""
FEW = 17  # distinct values of `integers` in a range


def draw_bools(strategy: str, rows: ManyRows) -> NDArray[np.bool_]:
    """Draw booleans of shape ``rows.shape`` for any strategy except `uniform`."""
    signs: NDArray[np.bool_] = draw_integers(strategy, rows, np.dtype(np.int8)) > 0
    if strategy in _ALONE:
        _leave_alone(signs, rows, value=_ALONE[strategy])
    return signs


def _leave_alone(signs: NDArray[np.bool_], rows: ManyRows, *, value: bool) -> None:
    """Set one random element per row of `signs` to `value`, and the row's others to ``not value``.
    Only about two thirds of each tensor's rows are set. If a tensor has a single row, it is set."""
    chosen = ~rows.every(3) if rows.number > 1 else np.ones((len(signs), 1), np.bool_)
    tensors, numbers = np.nonzero(chosen)
    signs[tensors, numbers] = not value
    signs[tensors, numbers, rows.random_columns()[chosen]] = value


def draw_integers(
    strategy: str,
    rows: ManyRows,
    dtype: np.dtype[Any],
    low: float | None = None,
    high: float | None = None,
) -> Array:
    """Return integers of shape ``rows.shape``, within [low, high] if there are bounds. If one bound
    is None, the values lie within 1000 of the other bound. If the range holds no integer of the
    dtype, all values are the integer nearest to it."""
    info = np.iinfo(dtype)
    if low is None and high is None:
        return _clipped(_INTEGERS[strategy](rows, info), dtype).reshape(rows.shape)
    # An open end lies as far from the other end as the values of `wide`.
    first = math.floor(high) - 999 if low is None and high is not None else math.ceil(low or 0)
    end = first + 1000 if high is None else math.floor(high) + 1
    first = min(max(first, int(info.min)), int(info.max), INT64_END - 1)
    end = min(max(end, first + 1), int(info.max) + 1, INT64_END)
    return _ranged(strategy, rows, first, end).astype(dtype).reshape(rows.shape)


def _clipped(values: Array, dtype: np.dtype[Any]) -> Array:
    if values.dtype == dtype:
        return values
    info = np.iinfo(dtype)
    return np.clip(values, info.min, min(int(info.max), INT64_END - 1)).astype(dtype)


def _signed(rows: ManyRows, info: np.iinfo[Any], low: int, end: int) -> Array:
    """Draw from [low, end), or for an unsigned type from [0, end - low). The part of this interval
    that lies beyond the limits of the type is left out."""
    if info.min == 0:
        low, end = 0, end - low
    low, end = max(low, int(info.min)), min(end, int(info.max) + 1)
    return rows.rngs.ranges(rows.count, low, end).reshape(rows.shape)


def _normal(rows: ManyRows, info: np.iinfo[Any]) -> Array:
    values = np.rint(rows.rngs.normal_f32(rows.count) * 16).astype(np.int64).reshape(rows.shape)
    return np.abs(values) if info.min == 0 else values


def _negative(rows: ManyRows, info: np.iinfo[Any]) -> Array:
    values = rows.rngs.ranges(rows.count, -100, 0).reshape(rows.shape)
    near = rows.every(3)
    values[near] = -100 - values[near] // 25
    if info.min == 0:
        return (int(info.max) + values.astype(object) + 1).astype(info.dtype)
    return values


def _sparse(rows: ManyRows, info: np.iinfo[Any]) -> Array:
    values = _normal(rows, info)
    values[rows.sparse_zeros()] = 0
    if rows.number > 1:
        values[np.arange(len(values)), rows.some_row()] = 0
    return values


def _ties(rows: ManyRows, info: np.iinfo[Any]) -> Array:
    return rows.few_values(np.array([abs(v) if info.min == 0 else v for v in TIES]))


def _limits(info: np.iinfo[Any]) -> Array:
    limits = [int(info.min), int(info.max), int(info.min) + 1, int(info.max) - 1, 0, 1]
    return np.array(limits, info.dtype)


def _extremes(rows: ManyRows, info: np.iinfo[Any]) -> Array:
    root = math.isqrt(int(info.max))
    values = rows.rngs.ranges(rows.count, -root if info.min else 0, root + 1)
    values = values.reshape(rows.shape).astype(info.dtype)
    raw = rows.every(2)
    values[raw] = rows.of_palette(_limits(info), raw)
    return values


def _special(rows: ManyRows, info: np.iinfo[Any]) -> Array:
    values = _clipped(_normal(rows, info), info.dtype)
    ends = np.array([int(info.min), int(info.max), 0], info.dtype)
    turns = rows.turns(4)
    single = turns < 3
    tensors, numbers = np.nonzero(single)
    values[tensors, numbers, rows.random_columns()[single]] = ends[turns[single]]
    values[turns == 3] = ends[0]
    return values


_INTEGERS: dict[str, Callable[[ManyRows, np.iinfo[Any]], Array]] = {
    "uniform": lambda rows, info: _signed(rows, info, -100, 100),
    "normal": _normal,
    "small": lambda rows, info: _signed(rows, info, -1, 2),
    "negative": _negative,
    "sparse": _sparse,
    "ties": _ties,
    "integers": lambda rows, info: _signed(rows, info, -8, 9),
    "wide": lambda rows, info: _signed(rows, info, -1000, 1001),
    "offset": lambda rows, info: rows.rngs.ranges(rows.count, 29, 32).reshape(rows.shape),
    "extremes": _extremes,
    "special": _special,
}


def _ranged(strategy: str, rows: ManyRows, first: int, end: int) -> Array:
    """Draw values from [first, end), with the strategy's structure as far as the range allows."""
    span = end - first
    if strategy in ("extremes", "special"):
        palette = np.array([first, end - 1, first + span // 2])
        return palette[rows.rngs.ranges(rows.count, 0, palette.size)].reshape(rows.shape)
    if strategy == "ties":
        spread = [first + span * k // 8 for k in range(8)]
        return rows.few_values(np.array(list(dict.fromkeys(spread))))
    if strategy == "normal":
        return _near_the_first(rows, first, span)
    if strategy in ("small", "integers"):
        return rows.rngs.ranges(rows.count, first, first + min(span, FEW)).reshape(rows.shape)
    values = rows.rngs.ranges(rows.count, first, end).reshape(rows.shape)
    if strategy == "sparse":
        rest = 0 if first <= 0 < end else first
        values[rows.sparse_zeros()] = rest
        if rows.number > 1:
            values[np.arange(len(values)), rows.some_row()] = rest
    return values


def _near_the_first(rows: ManyRows, first: int, span: int) -> Array:
    """Draw values whose distances from `first` have a uniformly distributed number of bits. So
    small distances are as frequent as large ones. If an op uses the values as indices into a short
    tensor, or as limits of such indices, only values near `first` are valid."""
    bits = rows.rngs.ranges(rows.count, 1, span.bit_length() + 1)
    words = rows.rngs.u64(rows.count) >> (64 - bits).astype(np.uint64)
    values: Array = (words % np.uint64(span)).astype(np.int64) + first
    return values.reshape(rows.shape)
