"""Kinds of ragged batches: offsets and lengths."""

from __future__ import annotations

import numpy as np

from gpuemu_flow.cases.kinds.setting import Array, Ints, Kind, Setting


def _offsets(setting: Setting) -> Array:
    rows, parts, to = setting.rows, setting.width - 1, setting.to or 0
    if parts < 1:
        return np.zeros(rows.shape, np.int64)
    cuts = np.sort(
        setting.rng.ranges(rows.number * (parts - 1), 0, to + 1).reshape(rows.number, -1)
    )
    pattern, third = setting.pattern, max((parts - 1) // 3, 1)
    if pattern == "even":
        line = np.array([to * k // parts for k in range(1, parts)], np.int64)
        cuts = np.tile(line, (rows.number, 1))
    elif pattern == "empty_first":
        cuts[:, :third] = 0
    elif pattern == "empty_last":
        cuts[:, -third:] = to
    elif pattern == "all_in_one":
        at = setting.rng.derive("at").ranges(rows.number, 0, parts)
        cuts = np.where(np.arange(1, parts) > at[:, None], to, 0)
    elif pattern == "all_in_last":
        cuts = np.zeros_like(cuts)
    elif pattern == "every_other":
        cuts[:, 1::2] = cuts[:, : (parts - 1) // 2 * 2 : 2]
    values = np.zeros(rows.shape, np.int64)
    values[:, 1:-1] = cuts
    values[:, -1] = to
    return values


def _rising(values: Array, setting: Setting) -> Array | None:
    to = setting.to or 0
    rows = np.clip(values.reshape(-1, setting.width).astype(np.int64), 0, to)
    rows = np.maximum.accumulate(rows, axis=1)
    if setting.width == 1 and to:
        return None
    rows[:, 0] = 0
    rows[:, -1] = to
    return rows.reshape(values.shape)


def _lengths(setting: Setting) -> Array:
    rows = setting.rows
    least, most = _length_bounds(setting)
    if setting.total is not None:
        return _of_total(setting, least, most)
    if rows.width == 1:
        return np.full(rows.shape, most if setting.pattern in ("full", "one_full") else least)
    values = setting.draw(least, most)
    if setting.pattern == "full":
        values[:] = most
    elif setting.pattern == "one_full":
        values = setting.draw(least, min(least + 1, most))
    elif setting.pattern == "short":
        values = setting.draw(least, min(least + 3, most))
    elif setting.pattern == "alternate":
        values = np.where(np.arange(rows.width) % 2 == 0, least, most) + np.zeros_like(values)
    first = setting.rng.derive("empty").ranges(rows.number, 0, rows.width)
    more = setting.rng.derive("whole").ranges(rows.number, 1, rows.width)
    everything = np.arange(rows.number)
    values[everything, first] = least
    values[everything, (first + more) % rows.width] = most
    return values


def _length_bounds(setting: Setting) -> tuple[int, int]:
    most = setting.to
    if most is None:
        most = int(setting.high) if setting.high is not None else setting.total or 0
    least = int(setting.low) if setting.low is not None else 0
    return min(least, most), most


def _of_total(setting: Setting, least: int, most: int) -> Array:
    """Draw rows of lengths with the wanted total, or as near to it as the bounds allow."""
    total = setting.total or 0
    count, rows = setting.count, setting.rows
    rest = min(max(total - least * count, 0), (most - least) * count)
    room = most - least
    values = np.full(count, least, np.int64)
    if setting.pattern in ("full", "alternate", "one_full"):
        # As many full ones as there can be, in a random order.
        whole, part = divmod(rest, room) if room else (0, 0)
        values[:whole] += room
        if part:
            values[whole] += part
        if setting.pattern == "full":
            return values.reshape(rows.shape)
        order = np.argsort(setting.rng.derive("order").u64(count), kind="stable")
        return values[order].reshape(rows.shape)
    if setting.pattern == "short":
        share, more = divmod(rest, count)
        values += share
        values[:more] += 1
        return values.reshape(rows.shape)
    cuts = np.sort(setting.rng.ranges(count - 1, 0, rest + 1))
    parts = np.diff(np.concatenate([[0], cuts, [rest]]))
    return _spread(values + parts, most).reshape(rows.shape)


def _spread(values: Ints, most: int) -> Ints:
    """Limit values to `most`, and add the excess to the first ones that have room."""
    excess = int(np.maximum(values - most, 0).sum())
    values = np.minimum(values, most)
    room = most - values
    before = np.cumsum(room) - room
    spread: Ints = values + np.clip(excess - before, 0, room)
    return spread


def _fitting(values: Array, setting: Setting) -> Array | None:
    least, most = _length_bounds(setting)
    fitted = np.clip(values.astype(np.int64), least, most).reshape(-1)
    if setting.total is None:
        return fitted.reshape(values.shape)
    excess = int(fitted.sum()) - setting.total
    if excess > 0:
        spare = fitted - least
        before = np.cumsum(spare) - spare
        fitted = fitted - np.clip(excess - before, 0, spare)
    elif excess < 0:
        room = most - fitted
        before = np.cumsum(room) - room
        fitted = fitted + np.clip(-excess - before, 0, room)
    return fitted.reshape(values.shape) if int(fitted.sum()) == setting.total else None


RAGGED = {"offsets": Kind(_offsets, _rising), "lengths": Kind(_lengths, _fitting)}
