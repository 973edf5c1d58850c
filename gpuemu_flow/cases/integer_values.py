"""Value strategies for integers and booleans.

For integers, three strategies have a meaning of their own:

- `negative`: an unsigned type gets its 100 largest values, which are negative if read as signed.
- `special`: the dtype's smallest value, its largest value and 0 replace -Inf, +Inf and NaN.
- `extremes`: every second row has the two smallest and the two largest values, 0 and 1. The other
  rows have magnitudes up to the square root of the largest value.

If the input has a range, all values lie in it.

A boolean is drawn as an 8-bit integer, and is true if the integer is positive. So `negative` gives
only false, and `offset` only true. In addition, `sparse` has rows with a single true element, and
`special` has rows with a single false element. Such rows test ops that reduce rows by ``any`` or
``all``: in most other rows, the first elements decide the result, and an op may not read the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.cases.rows import ManyRows

Array = NDArray[Any]

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

    Only about two thirds of each tensor's rows are set. If a tensor has a single row, it is set.
    """
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
    """Return integers of shape ``rows.shape``, within [low, high] if there are bounds.

    If one bound is None, the values lie within 1000 of the other bound. If the range holds no
    integer of the dtype, all values are the integer nearest to it.
    """
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
    """Draw from [low, end), or for an unsigned type from [0, end - low).

    The part of this interval that lies beyond the limits of the type is left out.
    """
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
    """Draw values whose distances from `first` have a uniformly distributed number of bits.

    So small distances are as frequent as large ones. If an op uses the values as indices into a
    short tensor, or as limits of such indices, only values near `first` are valid.
    """
    bits = rows.rngs.ranges(rows.count, 1, span.bit_length() + 1)
    words = rows.rngs.u64(rows.count) >> (64 - bits).astype(np.uint64)
    values: Array = (words % np.uint64(span)).astype(np.int64) + first
    return values.reshape(rows.shape)
