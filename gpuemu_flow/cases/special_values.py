"""Values of a tensor among the others: NaN and infinities, lone ones, and those of other inputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.model.syntax import tried_anyway
from gpuemu_flow.model.types import ABSENT, DTYPES, SCALAR, InputSpec, ValueRule
from gpuemu_flow.numerics.dtypes import FloatLimits, dtype_name, float_limits, numpy_dtype
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


SHARING = "normal"
"""The strategy whose first cases share values: it has no structure that these could spoil."""
SHARING_TURNS = (1, 2)
SHARE = 0.25
LEAST = 4
"""Number of elements from which on an input takes some from another."""
MAX_TAKEN = 4096
"""Largest number of elements of an input that others take."""
COMPARABLE = ("", "sorted", "unique", SCALAR)
"""Kinds of inputs whose values an op may compare with those of others."""


def lenders_of(spec: InputSpec, inputs: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
    """Return the lenders of an input: the case's inputs from which `spec` can take values.

    The result is empty if `spec` must keep its own values, or has too few elements. A lender has
    the dtype of `spec`, or is a Python number of the same family, such as the integers.

    Two more conditions apply to a lender whose rule does not set ``kind``. The lender must come
    before `spec`, so that no two inputs take values from each other. Its bounds or its rule must
    differ from those of `spec`, because inputs that are drawn alike share values anyway.
    """
    rule = spec.rule or ValueRule()
    whole = rule.kind or rule.values or rule.concerns_whole
    family = DTYPES[spec.dtype].kind
    if spec.strategy != SHARING or whole or family == "bool" or math.prod(spec.shape) < LEAST:
        return ()
    return tuple(other for other in inputs if other is not spec and _lends(other, spec, family))


def _lends(other: InputSpec, spec: InputSpec, family: str) -> bool:
    rule = other.rule or ValueRule()
    if rule.kind not in COMPARABLE or rule.relation or rule.generate or other.strategy == ABSENT:
        return False
    alike = other.dtype == spec.dtype
    if rule.kind == SCALAR:
        alike = DTYPES[other.dtype].kind == family
    if not alike or not math.prod(other.shape):
        return False
    if rule.kind:
        return True
    drawn_alike = (other.low, other.high, other.rule) == (spec.low, spec.high, spec.rule)
    return other.position < spec.position and other.strategy == SHARING and not drawn_alike


def put_shared(
    values: Array,
    dtype: str,
    rng: SeededRng,
    lenders: Sequence[Array],
    low: float | None,
    high: float | None,
) -> None:
    """Write values of other inputs into about a quarter of the elements, in place.

    The smallest and the largest of the values to be taken are always written. If another input has
    this input's shape, half of the written values come from the same positions of that input.
    """
    flat = values.reshape(-1)
    rng = rng.derive("shared")
    places = np.flatnonzero(rng.derive("places").f64(flat.size) < SHARE)
    if places.size < 2:
        first = rng.derive("some").gen_range(0, flat.size)
        places = np.array([first, (first + 1) % flat.size])
    pools = [_allowed(array, dtype, low, high) for array in lenders]
    pool = np.concatenate([taken[kept][:MAX_TAKEN] for taken, kept in pools])
    if not pool.size:
        return
    flat[places] = pool[rng.ranges(places.size, 0, pool.size)]
    flat[places[0]], flat[places[-1]] = pool.min(), pool.max()
    for array, (taken, kept) in zip(lenders, pools, strict=True):
        if array.shape == values.shape:
            beside = places[1::2]
            beside = beside[kept[beside]]
            flat[beside] = taken[beside]


def _allowed(
    lender: Array, dtype: str, low: float | None, high: float | None
) -> tuple[Array, NDArray[np.bool_]]:
    """Convert values to a dtype; also return a mask of those that are exact and in range."""
    flat = np.ascontiguousarray(lender).reshape(-1)
    target = numpy_dtype(dtype)
    with np.errstate(all="ignore"):
        taken = flat.astype(target)
        kept = taken.astype(flat.dtype) == flat
    if DTYPES[dtype].kind == "float":
        exact = taken.astype(np.float64)
        kept &= np.isfinite(exact)
    else:
        exact = taken
    if low is not None:
        kept &= exact >= low
    if high is not None:
        kept &= exact <= high
    return taken, kept


LONE = "normal"
"""The strategy whose cases hold such rows, since it has the most cases of long rows."""
LONE_TURNS = (3, 4, 5)
"""Turns that show such rows. Those before share values."""
TILES = (128, 64, 32)


def may_hold_lone(spec: InputSpec) -> bool:
    """Tell whether a row of an input may get a lone zero or a lone nonzero value."""
    rule = spec.rule or ValueRule()
    whole = rule.kind or rule.values or rule.concerns_whole or spec.layout == "expanded"
    if whole or not spec.shape or 0 in spec.shape or spec.shape[-1] < 2:
        return False
    low = spec.low if rule.low is None else rule.low
    high = spec.high if rule.high is None else rule.high
    computed = isinstance(low, str) or isinstance(high, str)
    return computed or _other_than_zero(spec.dtype, low, high) is not None


def _other_than_zero(dtype: str, low: Any, high: Any) -> float | None:
    """Return a value of the range other than 0; None if there is none, or if 0 is out of range."""
    if (low is not None and low > 0) or (high is not None and high < 0):
        return None
    family = DTYPES[dtype].kind
    if high is None or high >= 1:
        return 1
    if family == "float" and high > 0:
        return float(high) / 2
    if family not in ("int", "float"):
        return None
    if low is None or low <= -1:
        return -1
    return float(low) / 2 if family == "float" and low < 0 else None


def put_lone(
    values: Array, dtype: str, rng: SeededRng, turn: int, low: float | None, high: float | None
) -> None:
    """Write lone zeros and lone nonzero values into rows of an input, in place.

    A lone value is a row's only zero, or its only nonzero value. The other elements of such a row
    are changed where necessary. The parameter `turn` selects one of three ways:

    - The first and the third of `LONE_TURNS` write a lone zero into one row, and a lone nonzero
      value into the next row. They choose the positions in the rows differently (see `_place`). An
      input with a single row gets only the lone zero. The first way makes all other values
      negative, the third one positive. So a lone value is the largest or smallest of its row, and a
      maximum or minimum that leaves out the last tile shows.
    - The second of `LONE_TURNS` treats the whole tensor as one row, whose last element becomes the
      lone value. This value is nonzero if the tensor is a vector, and else 0.

    Before that, the last row gets the largest or the smallest value of each column.

    For a tensor of booleans with several rows, all three ways write every row, alternately with a
    lone false and a lone true.
    """
    other = _other_than_zero(dtype, low, high)
    if other is None or values.ndim == 0 or values.shape[-1] < 2:
        return
    rng = rng.derive("lone")
    rows = values.reshape(-1, values.shape[-1])
    flags = dtype == "bool"
    if not flags:
        _put_extremes_last(rows, turn)
    if turn == LONE_TURNS[1] and (len(rows) == 1 or not flags):
        flat = values.reshape(-1)
        _leave_one(flat, other, flat.size - 1, zero=values.ndim > 1)
        if values.ndim == 1:
            _give_sign(flat, low, high, negative=False)
        return
    first = 0 if flags else rng.gen_range(0, len(rows))
    for number in range(len(rows) if flags else min(2, len(rows))):
        row, zero = rows[(first + number) % len(rows)], number % 2 == 0
        _leave_one(row, other, _place(len(row), rng, turn, zero=zero), zero=zero)
        if not flags:
            _give_sign(row, low, high, negative=turn == LONE_TURNS[0])


def _put_extremes_last(rows: Array, turn: int) -> None:
    """Exchange elements of the last row with the largest of their columns, or the smallest, in
    turn. So it shows if a maximum or minimum of the columns leaves out the last tile."""
    columns = np.arange(rows.shape[1])
    order = rows if rows.dtype.kind in "iu" else rows.astype(np.float64)
    at = np.where(columns % 2 == turn % 2, order.argmax(0), order.argmin(0))
    rows[-1], rows[at, columns] = rows[at, columns], rows[-1].copy()


def _leave_one(row: Array, other: float, place: int, *, zero: bool) -> None:
    """Make the element at `place` the row's only zero if `zero`, else its only nonzero value."""
    if zero:
        row[row == 0] = other
        row[place] = 0
    else:
        kept = row[place] if row[place] != 0 else other
        row[...] = 0
        row[place] = kept


def _give_sign(row: Array, low: float | None, high: float | None, *, negative: bool) -> None:
    """Give all nonzero elements of a row one sign, if its range and dtype allow that."""
    signed = np.abs(row)
    if negative:
        np.negative(signed, out=signed, where=signed != 0)
    bottom, top = (low, 0) if negative else (0, high)  # integers may have wrapped
    if (bottom is None or signed.min() >= bottom) and (top is None or signed.max() <= top):
        row[...] = signed


def _place(width: int, rng: SeededRng, turn: int, *, zero: bool) -> int:
    """Return a position in a row: the start of the last tile, which may be whole or partial, or the
    last position; in turn for zeros and others. Booleans of the second way get a random one."""
    if turn == LONE_TURNS[1]:
        return rng.gen_range(0, width)
    begins = [(width - 1) // tile * tile for tile in TILES if width > tile]
    if begins and zero is (turn == LONE_TURNS[0]):
        return begins[rng.gen_range(0, len(begins))]
    return width - 1


NEAR = ("integers", "wide")
"""The strategies whose cases hold constants of the sources."""
NEAR_SHARE = 0.125


def near_constants(spec: InputSpec, constants: tuple[float, ...]) -> InputSpec:
    """Return the input's spec, which may demand values near the constants of the sources."""
    rule = spec.rule or ValueRule()
    own = rule.kind or rule.values or rule.concerns_whole
    if own or spec.strategy not in NEAR or DTYPES[spec.dtype].kind not in ("float", "int"):
        return spec
    return replace(spec, near=constants) if constants and 0 not in spec.shape else spec


def put_near(
    values: Array, dtype: str, rng: SeededRng, constants: Sequence[float],
    low: float | None, high: float | None,
) -> None:  # fmt: skip
    """Write constants, and the numbers next to them, into an eighth of the elements, in place.

    Of two neighbouring constants, the number halfway between them is written, too. A constant that
    the dtype does not hold is left out: right ops that round it may give another result there.
    Whole numbers that the strategy ``integers`` draws anyway are left out, too.
    """
    target, rng = numpy_dtype(dtype), rng.derive("near")
    constants = [number for number in constants if not tried_anyway(number)]
    ordered = sorted(constants)
    halfway = [(one + other) / 2 for one, other in itertools.pairwise(ordered)]
    palette: list[float] = []
    for number in (*constants, *halfway):
        if DTYPES[dtype].kind == "int":
            palette += [math.floor(number), math.floor(number) - 1, math.floor(number) + 1]
            continue
        with np.errstate(all="ignore"):
            nearest = np.array(number).astype(target)
            ends = [np.array(end).astype(target) for end in (-np.inf, np.inf)]
            around = [float(np.nextafter(nearest, end)) for end in ends]
        palette += around if float(nearest) != number else [number, *around]
    info = None if DTYPES[dtype].kind == "float" else np.iinfo(target)
    bottom, top = (info.min, info.max) if info else (-float_limits(dtype).max,) * 2
    top = top if info else -bottom
    fitting = [
        number
        for number in palette
        if bottom <= number <= top
        and (low is None or number >= low)
        and (high is None or number <= high)
    ]
    flat = values.reshape(-1)
    count = max(1, min(flat.size, int(flat.size * NEAR_SHARE)))
    if not fitting or (flat.size == 1 and rng.gen_range(0, 2)):
        return
    places = np.argsort(rng.u64(flat.size), kind="stable")[:count]
    start = rng.gen_range(0, len(fitting))
    flat[places] = [fitting[(start + turn) % len(fitting)] for turn in range(count)]
