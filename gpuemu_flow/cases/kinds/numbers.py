"""Kinds of inputs that constrain single numbers or their order: positive, sorted, …."""

from __future__ import annotations

import numpy as np

from gpuemu_flow.cases.kinds.setting import Array, Ints, Kind, Setting
from gpuemu_flow.model.types import DTYPES
from gpuemu_flow.numerics.dtypes import float_limits, numpy_dtype

NIBBLE_ENDS = (0x00, 0x0F, 0xF0, 0xFF, 0x77, 0x88, 0x78, 0x87, 0x70, 0x07, 0x80, 0x08)


def _positive(setting: Setting) -> Array:
    rows = setting.rows
    if not setting.floating:
        first, last = setting.integer_bounds(1, 100)
        whole = setting.draw(max(first, 1), max(last, 1))
        ends = {"tiny": first, "ones": first, "large": last}
        if setting.pattern in ends:
            whole[:] = max(ends[setting.pattern], 1)
        return whole
    limits = float_limits(setting.dtype)
    parts = setting.rng.f64(setting.count).reshape(rows.shape)
    values: Array
    if setting.pattern == "tiny":
        values = limits.smallest_normal * (1.0 + 3.0 * parts)
        subnormal = setting.rows.coin_flips()
        values[subnormal] = limits.smallest_normal * parts[subnormal]
    elif setting.pattern == "large":
        root = np.ldexp(1.0, int(np.frexp(limits.max)[1]) // 2)
        values = root * (1.0 + parts) / 2
    elif setting.pattern == "wide":
        exponents = setting.rng.derive("exponents").ranges(setting.count, -6, 7)
        values = np.ldexp(1.0 + parts, exponents.reshape(rows.shape).astype(np.intc))
    elif setting.pattern == "ones":
        values = np.ones(rows.shape)
    else:
        values = 0.0625 + 10.0 * parts
    return _above_zero(values, setting)


def _above_zero(values: Array, setting: Setting) -> Array:
    if not setting.floating:
        first, last = setting.integer_bounds(1, np.iinfo(np.int64).max - 2)
        return np.clip(values, max(first, 1), max(last, 1))
    limits = float_limits(setting.dtype)
    low = max(float(setting.low or 0.0), limits.smallest_subnormal)
    high = limits.max if setting.high is None else float(setting.high)
    wide = values.astype(np.float64)
    return np.clip(np.where(np.isfinite(wide), wide, high), low, high)


def _steps(setting: Setting) -> tuple[int, int]:
    """Return the smallest and the largest quantized value."""
    signed = DTYPES[setting.dtype].kind != "uint"
    bits = setting.rule.bits or 8 * DTYPES[setting.dtype].itemsize
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return setting.integer_bounds(low, high)


def _few_steps(setting: Setting, scale: float) -> Array:
    """Draw floats near 0: multiples of the smallest subnormal, up to the first normal numbers."""
    least = float_limits(setting.dtype).smallest_subnormal
    wide: Array = setting.draw(-16, 16) * (least / scale)
    return wide


def _quantized(setting: Setting) -> Array:
    rows = setting.rows
    if setting.floating:
        # Scaled floats: the largest value of each row is the largest of the dtype.
        top = float_limits(setting.dtype).max
        low, high = -1024, 1024
        scale = top / 1024
    else:
        (low, high), scale = _steps(setting), 1.0
    values: Array = setting.draw(low, high)
    if setting.pattern == "saturated":
        values = np.where(rows.coin_flips(), low, high)
    elif setting.pattern == "small":
        values = _few_steps(setting, scale) if setting.floating else setting.draw(-2, 2)
        values = np.clip(values, low, high)
    elif setting.pattern == "zero_rows":
        values[rows.every(2)] = 0
        return values * scale if setting.floating else values
    everything = np.arange(rows.number)
    at = rows.random_columns()
    values[everything, at] = high
    if setting.pattern == "full" and rows.width > 1:
        values[everything, (at + 1) % rows.width] = low
    return values * scale if setting.floating else values


def _fitted_quantized(values: Array, setting: Setting) -> Array:
    if setting.floating:
        return values
    return np.clip(values.astype(np.int64), *_steps(setting))


def _packed(setting: Setting) -> Array:
    rows = setting.rows
    values = setting.draw(0, 255)
    if setting.pattern == "low_only":
        return values & 0x0F
    if setting.pattern == "high_only":
        return values & 0xF0
    if setting.pattern == "ends":
        return np.array(NIBBLE_ENDS)[setting.draw(0, len(NIBBLE_ENDS) - 1)]
    if setting.pattern == "all_values":
        return np.arange(setting.count, dtype=np.int64).reshape(rows.shape) % 256
    return values


def _scalar(setting: Setting) -> Array:
    """Return the value that the strategy determines or, if it determines none, a random value."""
    values = setting.rule.values
    if values:
        at = int(setting.pattern[4:]) if setting.pattern.startswith("pick") else 0
        return np.full(setting.rows.shape, values[at % len(values)])
    if setting.floating:
        low, high = float(setting.low or 0.0), float(1.0 if setting.high is None else setting.high)
        part = {"lowest": 0.0, "highest": 1.0, "near_lowest": 2.0**-10}.get(setting.pattern)
        part = setting.rng.gen_f64() if part is None else part
        return np.full(setting.rows.shape, min(low + part * (high - low), high))
    first, last = setting.integer_bounds(0, 100)
    near = min(first + 1, last)
    ends = {"lowest": first, "highest": last, "near_lowest": near}
    value = ends.get(setting.pattern)
    return np.full(
        setting.rows.shape, setting.rng.gen_range(first, last + 1) if value is None else value
    )


def _fitted_scalar(values: Array, setting: Setting) -> Array | None:
    rule = setting.rule
    if rule.values:
        known = np.array(rule.numbers)
        return values if np.isin(values, known).all() else known[:1].reshape(values.shape)
    if setting.floating:
        wide = values.astype(np.float64)
        return np.clip(wide, setting.low, setting.high) if np.isfinite(wide).all() else None
    return np.clip(values, *setting.integer_bounds(0, 100))


NUMBERS = {
    "scalar": Kind(_scalar, _fitted_scalar),
    "positive": Kind(_positive, _above_zero),
    "quantized": Kind(_quantized, _fitted_quantized),
    "packed": Kind(_packed, lambda values, setting: values),
}


FEW = 4


def _permutation(setting: Setting) -> Array:
    rows, width = setting.rows, setting.width
    plain = np.tile(np.arange(width, dtype=np.int64), (rows.number, 1))
    if setting.pattern == "identity":
        return plain
    if setting.pattern == "reversed":
        return np.ascontiguousarray(plain[:, ::-1])
    if setting.pattern == "rotated":
        shift = setting.rng.ranges(rows.number, min(1, width - 1), width)
        return (plain + shift[:, None]) % width
    if setting.pattern == "swapped_ends":
        plain[:, [0, -1]] = plain[:, [-1, 0]]
        return plain
    return setting.order()


def _ranked(values: Array, setting: Setting) -> Array:
    """Replace each value by its rank in its row, so that each row becomes a permutation."""
    rows = values.reshape(-1, setting.width)
    order = np.argsort(rows, axis=1, kind="stable")
    return np.argsort(order, axis=1, kind="stable").reshape(values.shape)


def _sorted(setting: Setting) -> Array:
    rows = setting.rows
    if setting.floating:
        limit = float_limits(setting.dtype).max
        low = -10.0 if setting.low is None else float(setting.low)
        high = max(10.0, low + 1) if setting.high is None else float(setting.high)
        if setting.low is None and high < low:
            low = high - 20.0
        low, high = max(low, -limit), min(high, limit)
        parts = setting.rng.f64(setting.count).reshape(rows.shape)
        values: Array = low + parts * (high - low)
        steps: Array = np.array([low + (high - low) * k / FEW for k in range(FEW + 1)])
        line = np.array(
            [low + (high - low) * k / max(rows.width - 1, 1) for k in range(rows.width)]
        )
    else:
        first, last = setting.integer_bounds(-100, 100)
        values = setting.draw(first, last)
        steps = np.array([first + (last - first) * k // FEW for k in range(FEW + 1)])
        line = np.array(
            [first + (last - first) * k // max(rows.width - 1, 1) for k in range(rows.width)]
        )
    if setting.pattern == "ties":
        values = rows.few_values(steps)
    elif setting.pattern == "constant":
        values = np.repeat(values[:, :1], rows.width, axis=1)
    elif setting.pattern == "ends":
        values = np.where(rows.coin_flips(), steps[0], steps[-1])
    elif setting.pattern == "steps":
        values = np.tile(line, (rows.number, 1))
    return _in_order(values, setting)


def _in_order(values: Array, setting: Setting) -> Array:
    ordered = np.sort(values.reshape(-1, setting.width), axis=1, kind="stable")
    if setting.rule.descending:
        ordered = ordered[:, ::-1]
    return ordered.reshape(values.shape)


def _unique(setting: Setting) -> Array:
    if setting.floating:
        return _unique_floats(setting)
    first, last = setting.integer_bounds(0, max(4 * setting.width, 100))
    return _distinct(setting, first, last)


def _unique_floats(setting: Setting) -> Array:
    """Return distinct positive floats between the bounds, by drawing their bit patterns."""
    target = numpy_dtype(setting.dtype)
    words = np.dtype(f"u{target.itemsize}")
    limits = float_limits(setting.dtype)
    low = max(setting.low or 0.0, 2.0**-6, limits.smallest_normal)
    high = min(2.0**6 if setting.high is None else float(setting.high), limits.max)
    first, last = (int(np.array(end).astype(target).view(words)) for end in (low, max(low, high)))
    chosen = _distinct(setting, first, last)
    return chosen.astype(words).view(target).astype(np.float64)


def _distinct(setting: Setting, first: int, last: int) -> Ints:
    """Draw rows of distinct integers from [first, last]; repeat some if the range is too short."""
    rows, width = setting.rows, setting.width
    span = last - first + 1
    if setting.pattern in ("consecutive", "descending"):
        start = setting.rng.ranges(rows.number, 0, max(span - width, 0) + 1)
        values = start[:, None] + np.arange(width, dtype=np.int64)
    elif setting.pattern == "spread":
        line = [(span - 1) * k // max(width - 1, 1) for k in range(width)]
        values = np.tile(np.array(line, np.int64), (rows.number, 1))
    else:
        free = setting.rng.ranges(setting.count, 0, max(span - width, 0) + 1)
        values = np.sort(free.reshape(rows.shape), axis=1) + np.arange(width, dtype=np.int64)
    values = values % span + first
    if setting.pattern == "descending":
        return np.ascontiguousarray(values[:, ::-1])
    return np.take_along_axis(values, setting.order(), axis=1)


def _still_unique(values: Array, setting: Setting) -> Array | None:
    rows = np.sort(values.reshape(-1, setting.width), axis=1)
    return None if (rows[:, 1:] == rows[:, :-1]).any() else values


def _indices(setting: Setting) -> Array:
    rows = setting.rows
    first, last = setting.integer_bounds(0, max((setting.size or 1) - 1, 0))
    span = last - first + 1
    line = np.arange(setting.count, dtype=np.int64).reshape(rows.shape) % span
    plain = {
        "last": np.full(rows.shape, last, np.int64),
        "first": np.full(rows.shape, first, np.int64),
        "ascending": first + line,
        "descending": last - line,
    }
    if setting.pattern in plain:
        return plain[setting.pattern]
    if setting.pattern == "ends":
        return np.where(rows.coin_flips(), first, last)
    if setting.pattern == "few":
        some = setting.rng.derive("few").ranges(FEW, first, last + 1)
        some[0] = last
        return some[setting.draw(0, FEW - 1)]
    values = setting.draw(first, last)
    flat = values.reshape(-1)
    places = setting.rng.derive("places").ranges(4, 0, flat.size)
    flat[places] = (first, last, last, flat[places[0]])  # the ends, and one of them twice
    return values


def _clipped(values: Array, setting: Setting) -> Array:
    first, last = setting.integer_bounds(0, max((setting.size or 1) - 1, 0))
    return np.clip(values.astype(np.int64), first, last)


ORDER = {
    "permutation": Kind(_permutation, _ranked),
    "sorted": Kind(_sorted, _in_order),
    "unique": Kind(_unique, _still_unique),
    "indices": Kind(_indices, _clipped),
}
