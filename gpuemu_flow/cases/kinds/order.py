"""Kinds of inputs that constrain the order of elements: permutation, sorted, unique, indices."""

from __future__ import annotations

import numpy as np

from gpuemu_flow.cases.kinds.setting import Array, Ints, Kind, Setting
from gpuemu_flow.numerics.dtypes import float_limits, numpy_dtype

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
