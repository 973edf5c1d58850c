"""Value strategies for floats, from plain to adversarial values.

A *row* is a slice along the last axis. Structure (a constant row, a row of -Inf) applies to rows,
because reductions, softmax and norms work on them. A 0-d tensor is a single row of one element.
`uniform` is bit-identical to gpuemu's generator; each other strategy draws from its own random
domain. `integer_values` has the strategies for integers and booleans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.cases.rows import ManyRows, draw_bools, draw_integers
from gpuemu_flow.cases.special_values import (
    KINDS_ALONE,
    SPECIAL_KINDS,
    put_one_kind,
    put_special_rows,
)
from gpuemu_flow.model.types import DTYPES, STRATEGIES, Shape
from gpuemu_flow.numerics.dtypes import FloatLimits, dtype_name, float_limits, numpy_dtype
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.rng_arrays import SeededStreams, fill_uniform

Array = NDArray[Any]

SPECIAL_ROWS = 16  # about so many rows hold special values: more would poison every result
TIES = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)
MEANS = (30.0, 30.0, -30.0, 100.0, 7.0)
SPREADS = (1.0, 0.1, 0.01, 0.0)
FIRST_SPREAD = 2  # in turn
OVERFLOWS_SQUARED = 2.0**64  # in float32, which all but float64 ops compute in
NEGATIVE_KINDS = 3  # of rows
FAR_BELOW = 1e5  # below -10,000 and -65,504, which half kernels take for -Inf
QUANTA = 127  # steps of a symmetric int8 quantiser on either side
STEP_SIZES = 6  # from 4 down to 1/8
OTHER_STEPS = (0.5, 2.0, 0.25, 4.0, 0.125)
WIDEST_FOLD = 1e150  # into a wider range values are clipped, not reflected: no sum can overflow


def draw(
    strategy: str,
    rng: SeededRng,
    shape: Shape,
    dtype: str,
    low: float | None = None,
    high: float | None = None,
    *,
    nonfinite: bool | None = None,
    turn: int = 0,
) -> Array:
    """Draw the values of a tensor. Raises ValueError when there is no such strategy or dtype."""
    drawn = draw_alike(
        strategy, [rng.seed], shape, dtype, low, high, nonfinite=nonfinite, turn=turn
    )
    return drawn.reshape(shape)


def draw_alike(
    strategy: str,
    seeds: Sequence[int],
    shape: Shape,
    dtype: str,
    low: float | None = None,
    high: float | None = None,
    *,
    nonfinite: bool | None = None,
    turn: int = 0,
) -> Array:
    """Draw one tensor for each seed, with the values that `draw` gives for that seed."""
    if strategy not in STRATEGIES or dtype not in DTYPES:
        raise ValueError(f"there is no strategy {strategy!r} or no dtype {dtype!r}")
    kind = DTYPES[dtype].kind
    count = math.prod(shape)
    ranged = kind != "bool" and (low is not None or high is not None)
    whole = (len(seeds), *shape)
    if count == 0:
        return np.empty(whole, numpy_dtype(dtype))
    if strategy == "uniform" and not ranged:
        return fill_uniform(SeededStreams(seeds), count, dtype).reshape(whole)
    number = count // max(shape[-1], 1) if shape else 1
    rows = ManyRows(SeededStreams(seeds).derive(strategy), number, count, turn)
    if kind == "bool":
        return draw_bools(strategy, rows).reshape(whole)
    if kind != "float":
        return draw_integers(strategy, rows, numpy_dtype(dtype), low, high).reshape(whole)
    drawn = _draw_floats(strategy, rows, dtype)
    values = _into_range(drawn, low, high, dtype) if ranged else drawn
    if nonfinite:
        np.copyto(values, drawn, where=~np.isfinite(drawn.astype(np.float64)))
    elif nonfinite is False:
        values = _finite(values, dtype, low, high)
    return values.reshape(whole)


class _Format(Struct, frozen=True):
    """The dtype of the drawn values, and the dtype in which they are computed."""

    dtype: str
    limits: FloatLimits

    @property
    def work(self) -> type[np.floating[Any]]:
        return np.float64 if self.dtype == "float64" else np.float32

    def rounded(self, values: Array) -> Array:
        """Convert values to the dtype, clipped to its largest finite magnitude."""
        target = numpy_dtype(self.dtype)
        if values.dtype == target:
            return values
        return np.clip(values, -self.limits.max, self.limits.max).astype(target)


def _bits(values: Array) -> Array:
    """Return floats as unsigned integers, so that signs can be changed without branches."""
    return values.view(np.dtype(f"u{values.itemsize}"))


def _draw_floats(strategy: str, rows: ManyRows, dtype: str) -> Array:
    form = _Format(dtype, float_limits(dtype))
    if strategy == "special":
        return _special(rows, form)
    return form.rounded(_FLOATS[strategy](rows, form))


def _uniform(rows: ManyRows, form: _Format, low: float, high: float) -> Array:
    unit = rows.rngs.f64(rows.count) if form.work is np.float64 else rows.rngs.f32(rows.count)
    unit *= high - low
    unit += low
    return unit.reshape(rows.shape)


def _normal(rows: ManyRows, form: _Format) -> Array:
    values: Array = rows.rngs.normal_f32(rows.count)
    if form.work is np.float64:
        # float32 normals are the same on every machine; the bits below them are uniform noise.
        noise = rows.rngs.derive("noise").f64(rows.count)
        values = values * (1.0 + (noise - 0.5) * 2.0**-23)
    return values.reshape(rows.shape)


def _small(rows: ManyRows, form: _Format) -> Array:
    bound = max(1e-3, 4 * form.limits.smallest_normal)  # float8_e4m3fn would have only zeros
    return _uniform(rows, form, -bound, bound)


def _wide(rows: ManyRows, form: _Format) -> Array:
    bound = min(1e3, form.limits.max)
    if rows.turn > 1:
        values = _magnitudes(rows, form, 0, math.floor(math.log2(bound)))
        rising = ~rows.every(2)  # a maximum of the first tile is far below a later one
        values[rising] = np.sort(values[rising], axis=1)
    else:
        values = _uniform(rows, form, -bound, bound)
    _onto_halves(values, rows, bound)
    return values


def _onto_halves(values: Array, rows: ManyRows, bound: float) -> None:
    """Change every second row to values that show how an int8 quantiser rounds ties.

    Such a quantiser divides a row by a step size, and rounds the quotients to integers from -127 to
    127. Most of the new values are odd multiples of half a step. Their quotients are ties: they lie
    exactly between two integers.

    The largest new magnitude of a row is 127 steps. An op that computes the step size from this
    magnitude thus gets a power of two, so that no other rounding hides how it rounds ties. Other
    ops get the step size as an input. For these ops, different rows have different step sizes.
    """
    chosen = rows.every(2)
    step = 2.0 ** math.floor(math.log2(bound / QUANTA))
    first = rows.rngs.derive("steps").gen_range(0, STEP_SIZES)
    vector = rows.turn > 0 and rows.number == 1
    if vector:  # halves of whole numbers, for ops without a scale
        first = np.full(len(first), round(math.log2(step)))
    turns = (np.cumsum(chosen, axis=1) - 1 + first[:, None])[chosen]
    steps = np.ldexp(step, -(turns % STEP_SIZES).astype(np.intc))
    halves = np.floor(values[chosen] * (QUANTA / bound))
    halves = np.clip(halves, -QUANTA, QUANTA - 1) + 0.5
    if vector:  # every second element, for ops with a given scale
        others = halves[:, 1::2]
        sizes = np.resize(np.array(OTHER_STEPS, halves.dtype), others.shape[1])
        others[...] = (np.floor(others / np.maximum(sizes, 1)) + 0.5) * sizes
    places = np.arange(len(halves)), rows.random_columns()[chosen]
    halves[places] = np.copysign(QUANTA, halves[places])
    values[chosen] = halves * steps[:, None]


def _negative(rows: ManyRows, form: _Format) -> Array:
    values = _uniform(rows, form, -10.0, -0.01)
    near = rows.every(NEGATIVE_KINDS)
    values[near] *= 0.2
    values[near] -= 100.0
    if rows.turn == (1 if rows.number >= NEGATIVE_KINDS else NEGATIVE_KINDS):
        values[np.arange(len(values)), near.argmin(axis=1)] -= min(FAR_BELOW, form.limits.max / 2)
    return values


def _sparse(rows: ManyRows, form: _Format) -> Array:
    values = _normal(rows, form)
    _bits(values)[...] *= ~rows.sparse_zeros()
    if rows.number > 1:
        values[np.arange(len(values)), rows.some_row()] = 0.0
    return values


def _ties(rows: ManyRows, form: _Format) -> Array:
    if rows.turn > 1:
        return np.zeros(rows.shape, form.work)
    return rows.few_values(np.array(TIES, form.work))


def _integers(rows: ManyRows, form: _Format) -> Array:
    return rows.rngs.ranges(rows.count, -8, 9).astype(form.work).reshape(rows.shape)


def _offset(rows: ManyRows, form: _Format) -> Array:
    means = rows.rngs.derive("mean").choice(MEANS)
    if rows.turn and rows.number < len(SPREADS):  # above 0 first, then below
        means = [MEANS[rows.turn - 1]] * len(means)
    ulps = [form.limits.eps * 2.0 ** math.floor(math.log2(abs(mean))) for mean in means]
    spreads = np.array([[max(spread, 4 * ulp) for spread in SPREADS] for ulp in ulps], form.work)
    values = _normal(rows, form)
    values *= spreads[np.arange(len(means))[:, None], rows.turns(len(SPREADS), FIRST_SPREAD)][
        ..., None
    ]
    values += np.array(means, form.work)[:, None, None]
    return values


def _extremes(rows: ManyRows, form: _Format) -> Array:
    """Draw rows of the dtype's limits, alternating with rows of numbers whose squares are finite.
    Limits are the dtype's largest and smallest numbers, 0 and 1, of either sign. If the square of
    the largest number overflows in float32, this number occurs only once in a tensor. If it
    occurred more often, too many elements of a matrix product would be infinite. In about every
    second tensor, or in all if ``rows.turn`` is not 0, one element is so large that its square
    overflows. An op that squares this element may return Inf even where the correct result is
    small. No tolerance accepts Inf for a small result."""
    limits = form.limits
    exponent = math.frexp(limits.max)[1] // 2 - 1
    values = _magnitudes(rows, form, -exponent, exponent)
    half = limits.smallest_normal / 2
    positive = (limits.max, limits.smallest_normal, limits.smallest_subnormal, half, 1.0)
    palette = np.array([*positive, *(-x for x in positive), 0.0, -0.0], form.work)
    raw = rows.every(2)
    # A single row is both: every second element is a limit.
    spots = raw[..., None] & (
        np.arange(rows.width) % 2 < (1 if rows.turn and rows.number == 1 else 2)
    )
    taken = np.zeros(rows.shape, form.work)
    taken[raw] = rows.of_palette(palette, raw)
    if limits.max > OVERFLOWS_SQUARED:
        largest = np.abs(taken) == form.work(limits.max)
        _unmark_one(largest.reshape(len(largest), -1), rows.rngs.derive("largest"))
        # The unmarked elements keep the magnitudes that were drawn for the other rows.
        spots = spots & ~largest
    np.copyto(values, taken, where=spots)
    _put_beyond_root(values, rows, exponent + 2, math.frexp(limits.max)[1] * 3 // 4)
    return values


def _magnitudes(rows: ManyRows, form: _Format, low: int, end: int) -> Array:
    """Draw numbers of either sign whose magnitudes are between 2**`low` and 2**`end`."""
    exponents = rows.rngs.ranges(rows.count, low, end)
    bits = rows.rngs.u64(rows.count)
    values: Array = (bits >> np.uint64(40)).astype(form.work)
    values *= 2.0**-24
    values += 1
    bits <<= np.uint64(8 * values.itemsize - 1)
    _bits(values)[...] ^= bits.astype(_bits(values).dtype)
    exponents -= low
    values *= np.ldexp(form.work(1.0), np.arange(low, end, dtype=np.intc)).take(exponents)
    return values.reshape(rows.shape)


def _put_beyond_root(values: Array, rows: ManyRows, low: int, end: int) -> None:
    """Set one random element of some tensors to a number whose square overflows in their dtype. The
    number is a power of two, with an exponent of at least `low` and less than `end`. If
    ``rows.turn`` is above 0, every tensor gets such a number. Otherwise, each tensor gets one with
    a probability of one half."""
    rngs = rows.rngs.derive("beyond root")
    coins, places = rngs.gen_range(0, 2) | (rows.turn > 0), rngs.gen_range(0, rows.count)
    powers = rngs.gen_range(low, end)
    flat = values.reshape(len(values), -1)
    for one in np.flatnonzero(coins):
        flat[one, places[one]] = np.ldexp(values.dtype.type(1.0), int(powers[one]))


def _unmark_one(marks: NDArray[np.bool_], rngs: SeededStreams) -> None:
    """Set one random True element of each tensor's mask, if it has any, to False."""
    for one, word in zip(marks, rngs.words(), strict=True):
        places = np.flatnonzero(one)
        if places.size:
            one[places[word % places.size]] = False


def _special(rows: ManyRows, form: _Format) -> Array:
    """Draw normal values, and write special numbers into about `SPECIAL_ROWS` of the rows. There
    are six kinds of such rows. A row has one NaN; one +Inf; one -Inf; -0 in half of its elements;
    only -Inf; or one each of NaN, +Inf and -Inf, to test maxima and sums. Some rows of -Inf are
    followed by two more, to fill the window of a pooling op. In a dtype without Inf, its largest
    value replaces Inf."""
    values = form.rounded(_normal(rows, form))
    columns = rows.random_columns()
    flips = rows.coin_flips()
    if 1 < rows.turn <= KINDS_ALONE:
        some = rows.some_row().tolist()
        for tensor, one in enumerate(values):
            alone = some[tensor], columns[tensor], flips[tensor]
            put_one_kind(one, rows.turn, *alone, form.limits)
        return values
    first = rows.rngs.derive("first").gen_range(0, min(_special_step(rows), rows.number)).tolist()
    start = rows.rngs.derive("kind").gen_range(0, SPECIAL_KINDS).tolist()
    tall = rows.rngs.derive("tall").gen_range(0, 2).tolist()
    for tensor, one in enumerate(values):
        begin = range(first[tensor], rows.number, _special_step(rows))
        random = start[tensor], tall[tensor], columns[tensor], flips[tensor]
        put_special_rows(one, begin, *random, form.limits)
    return values


def _special_step(rows: ManyRows) -> int:
    return max(1, rows.number // SPECIAL_ROWS)


_FLOATS: dict[str, Callable[[ManyRows, _Format], Array]] = {
    "uniform": lambda rows, form: _uniform(rows, form, -10.0, 10.0),
    "normal": _normal,
    "small": _small,
    "negative": _negative,
    "sparse": _sparse,
    "ties": _ties,
    "integers": _integers,
    "wide": _wide,
    "offset": _offset,
    "extremes": _extremes,
}


def _into_range(values: Array, low: float | None, high: float | None, dtype: str) -> Array:
    """Reflect finite values into the range, and limit infinities to its ends. If `low` is None,
    -Inf stays; if `high` is None, +Inf stays. NaN is replaced by `low` if the range has both ends,
    and stays otherwise."""
    limits = float_limits(dtype)
    bottom = -limits.max if low is None else max(low, -limits.max)
    top = limits.max if high is None else min(high, limits.max)
    exact = values.astype(np.float64)
    if low is not None and high is not None:
        exact[np.isnan(exact)] = low
        exact = _folded(exact, bottom, top)
    elif low is not None and abs(low) < WIDEST_FOLD:
        exact = np.where(exact < bottom, 2 * bottom - exact, exact)
    elif high is not None and abs(high) < WIDEST_FOLD:
        exact = np.where(exact > top, 2 * top - exact, exact)
    # An open end allows its infinity; a closed one also limits the rounded values.
    exact = np.clip(exact, -math.inf if low is None else bottom, math.inf if high is None else top)
    rounded = exact.astype(numpy_dtype(dtype))
    if low is not None:
        rounded[rounded.astype(np.float64) < bottom] = _representable(bottom, dtype, up=True)
    if high is not None:
        rounded[rounded.astype(np.float64) > top] = _representable(top, dtype, up=False)
    return rounded


def _finite(values: Array, dtype: str, low: float | None, high: float | None) -> Array:
    """Replace Inf by a large number of its sign, and NaN by the number nearest 0 in range. Beyond
    an open end of the range, no number is larger: products of three such values are finite."""
    largest = limit = float_limits(dtype).max
    exact = values.astype(np.float64)
    if limit > OVERFLOWS_SQUARED:
        limit = 2.0 ** (math.frexp(limit)[1] // 4)
        bottom = -limit if low is None else min(low, -limit)
        exact = np.clip(exact, bottom, limit if high is None else max(high, limit))
    nan = np.isnan(exact)
    finite = np.clip(np.where(nan, 0.0, exact), -largest, largest).astype(numpy_dtype(dtype))
    if low is not None and low > 0.0:
        finite[nan] = _representable(min(low, largest), dtype, up=True)
    elif high is not None and high < 0.0:
        finite[nan] = _representable(max(high, -largest), dtype, up=False)
    return finite


def put_ends(
    values: Array, rng: SeededRng, turn: int, low: float | None, high: float | None
) -> None:
    """Write both ends of the range into an input's values, in place."""
    dtype = dtype_name(values.dtype) or ""
    kind = DTYPES[dtype].kind if dtype else "bool"
    if values.size == 0 or kind == "bool":
        return
    ends: list[Any]
    if kind == "float":
        limits = float_limits(dtype)
        bottom = None if low is None or low < -limits.max else _representable(low, dtype, up=True)
        top = None if high is None or high > limits.max else _representable(high, dtype, up=False)
        ends = [bottom, top]
    else:
        info = np.iinfo(values.dtype)
        first = int(info.min) if low is None else min(max(math.ceil(low), info.min), info.max)
        last = int(info.max) if high is None else max(min(math.floor(high), info.max), first)
        ends = [first, last]
    flat = values.reshape(-1)
    places = rng.derive("ends")
    if values.size == 1:
        ends = [ends[(turn + 1) % 2]]
    at = places.gen_range(0, values.size)
    for end in ends:
        if end is not None:
            flat[at] = end
        at = (at + 1 + places.gen_range(0, max(values.size - 1, 1))) % values.size


def _folded(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Reflect values at the ends of [low, high] until all lie inside."""
    span = high - low
    if span <= 0 or span > WIDEST_FOLD:
        return np.clip(values, low, high)
    outside = np.isfinite(values) & ((values < low) | (values > high))
    distance = np.remainder(values[outside] - low, 2 * span)
    values[outside] = low + np.where(distance > span, 2 * span - distance, distance)
    return values


def _representable(bound: float, dtype: str, *, up: bool) -> Any:
    """Round `bound` to a value of the dtype: upward if `up`, else downward."""
    target = numpy_dtype(dtype)
    nearest = np.array(bound).astype(target)
    if (float(nearest) < bound) if up else (float(nearest) > bound):
        end = float_limits(dtype).max  # not infinity, which is NaN in a dtype without it
        return np.nextafter(nearest, np.array(end if up else -end).astype(target))
    return nearest
