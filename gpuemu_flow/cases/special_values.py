"""NaN, infinities and negative zeros among the values of a tensor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import FloatLimits, dtype_name, float_limits
from gpuemu_flow.numerics.rng import SeededRng

Array = NDArray[Any]

HALF = 0.5
SPECIAL_KINDS = 6
SHARED = 2
"""Number of places at which an input takes over each kind of another one."""
KINDS_ALONE = 4
"""The last turn that `put_one_kind` knows."""


def put_special_rows(
    values: Array,
    chosen: range,
    start: int,
    tall: int,
    columns: NDArray[np.int64],
    flips: NDArray[np.bool_],
    limits: FloatLimits,
) -> None:
    """Write special numbers into the chosen rows of one tensor, an array of two axes, in place.

    The kinds of special numbers take turns, beginning with kind `start`. `columns` has a random
    position in each row, and `flips` marks a random half of the elements. One kind fills whole rows
    with -Inf. It fills three rows if `tall` (0 or 1) plus the position of the first one in `chosen`
    is odd, else one row.
    """
    infinity = math.inf if limits.has_inf else limits.max
    covered = -1
    for turn, row in enumerate(chosen):
        if row <= covered:
            continue
        kind = (start + turn) % (SPECIAL_KINDS + 1) if turn else start  # the last stays as it is
        column = columns[row]
        if kind == 0:
            values[row, column] = math.nan if limits.has_nan else infinity
        elif kind == 1:
            values[row, column] = infinity
        elif kind == 2:
            values[row, column] = -infinity
        elif kind == 3:
            values[row, flips[row]] = -0.0
            values[row, column] = -0.0
        elif kind == 4:
            covered = row + 2 * ((tall + turn) % 2)
            values[row : covered + 1, :] = -infinity
        elif kind == 5:
            mixed = (-infinity, infinity, math.nan if limits.has_nan else infinity)
            for step, value in enumerate(mixed):
                values[row, (column * (step + 1) + step) % values.shape[1]] = value


def put_one_kind(
    values: Array,
    turn: int,
    row: int,
    columns: NDArray[np.int64],
    flips: NDArray[np.bool_],
    limits: FloatLimits,
) -> None:
    """Write the special numbers that `turn` selects into one tensor of two axes, in place.

    The tensor gets no other special numbers. A result that depends on the whole tensor, such as its
    sum, therefore shows the effect of these alone.
    """
    infinity = math.inf if limits.has_inf else limits.max
    others = [(row + step) % len(values) for step in range(1, min(len(values), 5))]
    if turn == 2:
        values[others[:1]] = infinity
        values[row, columns[row]] = infinity
    elif turn == 3:
        for zeros in others[:1]:
            values[zeros] = np.where(flips[zeros], -0.0, 0.0)
            values[zeros, 0], values[zeros, -1] = -0.0, 0.0
        values[others[1:]] = -infinity
        values[row, columns[row]] = math.nan if limits.has_nan else infinity
    else:
        values[...] = -infinity


def put_specials(
    values: Array,
    rng: SeededRng,
    low: float | None,
    high: float | None,
    *,
    nonfinite: bool | None = None,
    most: int = 3,
) -> None:
    """Write NaN, +Inf and -Inf into an array, in place, unless it already has them.

    With few rows, the strategy `special` draws only some of the three. Each missing one is written
    once. All are written into the same row, so that the other rows stay unchanged. Numbers that the
    range excludes are not written. `most` limits how many are written. The other parameters are
    those of `values.draw`.
    """
    limits = float_limits(dtype_name(values.dtype) or "")
    bounded = low is not None and high is not None
    wanted = []
    if limits.has_nan and (nonfinite or not bounded):
        wanted.append(math.nan)
    if limits.has_inf:
        wanted += [math.inf] if nonfinite or high is None else []
        wanted += [-math.inf] if nonfinite or low is None else []
    known = values.astype(np.float64)
    found = (np.isnan(known).any(), (known == math.inf).any(), (known == -math.inf).any())
    present = dict(zip(("nan", "inf", "-inf"), found, strict=True))
    missing = [value for value in wanted if not present[str(value)]][:most]
    if not missing:
        return
    places = rng.derive("specials")
    rows = values.reshape(-1, values.shape[-1] if values.ndim else 1)
    row = rows[places.gen_range(0, len(rows))]
    free = np.flatnonzero(np.isfinite(row.astype(np.float64)))
    if free.size < len(missing):
        free = np.arange(row.size)
    start, step = places.gen_range(0, free.size), max(1, free.size // 3)
    for turn, value in enumerate(missing):
        row[free[(start + turn * step) % free.size]] = value


def put_shared_specials(
    values: Array, lent: Array, low: float | None, high: float | None, *, nonfinite: bool | None
) -> None:
    """Copy some NaN, +Inf and -Inf from another input, `lent`, to the same positions of `values`.

    An op that compares the two inputs (`isclose`, `equal_nan`) then meets these numbers on both
    sides. The inputs have the same shape. Numbers that the range excludes are not copied; `low`,
    `high` and `nonfinite` are the parameters of `values.draw`.
    """
    limits = float_limits(dtype_name(values.dtype) or "")
    wide = np.ascontiguousarray(lent).reshape(-1).astype(np.float64)
    flat = values.reshape(-1)
    bounded = low is not None and high is not None
    for value, known, exists, fits in (
        (math.nan, np.isnan(wide), limits.has_nan, not bounded),
        (math.inf, wide == math.inf, limits.has_inf, high is None),
        (-math.inf, wide == -math.inf, limits.has_inf, low is None),
    ):
        if exists and (fits or nonfinite):
            places = np.flatnonzero(known)
            own = np.isfinite(flat[places].astype(np.float64))
            flat[(places[own] if own.any() else places)[:SHARED]] = value


def put_negative_zeros(values: Array, rng: SeededRng) -> None:
    """Turn about half of the zeros into -0, in place."""
    flat = values.reshape(-1)
    flips = rng.derive("negative zeros").f64(flat.size) < HALF
    flat[flips & (flat == 0)] = -0.0
