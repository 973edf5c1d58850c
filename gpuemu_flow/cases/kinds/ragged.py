"""Kinds of inputs for ragged batches: offsets and lengths."""

from __future__ import annotations

import numpy as np

from gpuemu_flow.cases.kinds.setting import Array, Ints, Kind, Setting
from gpuemu_flow.numerics.rng import SeededRng

SMALL = (2, 1, 3)
"""Lengths at which pairwise loops, means and padding go wrong; 0 and the largest occur anyway."""
TILED = (65, 33, 129, 17, 64, 63, 97, 32, 31, 16, 128, 127, 15, 257, 256, 255)
"""Lengths whose last tile holds a single row, is full, or lacks one, for the usual sizes of tiles;
those that do so for most sizes come first."""
_FREE = ("random", "empty_first", "empty_last", "every_other")
"""Strategies of offsets that leave the lengths of some rows open."""


def _offsets(setting: Setting) -> Array:
    rows, parts, to = setting.rows, setting.width - 1, setting.to or 0
    if parts < 1:
        return np.zeros(rows.shape, np.int64)
    cuts = np.sort(
        setting.rng.ranges(rows.number * (parts - 1), 0, to + 1).reshape(rows.number, -1)
    )
    pattern, third = setting.pattern, max((parts - 1) // 3, 1)
    if pattern == "even":
        tile = 1 << max((to // parts).bit_length() - 1, 0)  # a row that begins with a tile
        line = np.array([to * k // parts // tile * tile for k in range(1, parts)], np.int64)
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
    if pattern in _FREE:
        edge = np.full((rows.number, 1), to)
        lengths = np.diff(np.concatenate([np.zeros_like(edge), cuts, edge], axis=1), axis=1)
        cuts = np.cumsum(_with_small(lengths, setting, 0, to, summed=True), axis=1)[:, :-1]
    values = np.zeros(rows.shape, np.int64)
    values[:, 1:-1] = cuts
    values[:, -1] = to
    return values


def _with_small(
    lengths: Ints, setting: Setting, least: int, most: int, *, summed: bool = False
) -> Ints:
    """Replace at most half of the lengths above 0 in each row by lengths of `SMALL` and `TILED`.
    Random draws seldom give such lengths. A short row has room for only some of them; which it gets
    is random."""
    rng = setting.rng.derive("small")
    small = _telling(rng, least, most)
    found: Ints = lengths.copy()
    for row in found:
        filled = np.flatnonzero(row)
        filled = filled[np.argsort(rng.u64(filled.size), kind="stable")]
        count = min(filled.size // 2, len(small))
        chosen, others = filled[:count], filled[count:]
        if summed:
            rest = int(row[filled].sum() - small[:count].sum())
            if not least * others.size <= rest <= most * others.size:
                continue
            row[others] = _with_sum(row[others], rest, least, most)
        row[chosen] = small[:count]
    return found


def _telling(rng: SeededRng, least: int, most: int) -> Ints:
    """Return lengths of `SMALL` and of `TILED` in turns, in random order, as far as they fit."""
    tiled = [length for length in TILED if least <= length <= most]
    small = np.roll(SMALL, rng.gen_range(0, len(SMALL))).tolist()
    if tiled:
        first = min(rng.gen_range(0, len(tiled)), rng.gen_range(0, len(tiled)))
        step = 1 + 2 * rng.gen_range(0, 2)
        tiled = [tiled[(first + step * turn) % len(tiled)] for turn in range(len(small))]
    pairs = [(small, tiled), (tiled, small)][rng.gen_range(0, 2)]
    both = [length for pair in zip(*pairs, strict=True) for length in pair] if tiled else small
    return np.clip(np.array(both, np.int64), least, most)


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
    values = setting.draw(least, most)
    if rows.width == 1:
        alone = {"full": most, "one_full": most, "alternate": least, "short": least + SMALL[0]}
        length = alone.get(setting.pattern)
        if length is None and setting.rng.derive("told").gen_range(0, 2):
            length = int(_telling(setting.rng.derive("small"), least, most)[0])
        return values if length is None else np.full(rows.shape, min(length, most))
    if setting.pattern == "random":
        values = _with_small(values, setting, least, most)
    elif setting.pattern == "full":
        values[:] = most
    elif setting.pattern == "one_full":
        values = setting.draw(least, min(least + 1, most))
    elif setting.pattern == "short":
        values = setting.draw(least, min(least + 3, most))
    elif setting.pattern == "alternate":
        values = np.where(np.arange(rows.width) % 2 == 0, least, most) + np.zeros_like(values)
        values = _with_small(values, setting, least, most)
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
    """Draw lengths whose sum is the setting's total, or as near to it as the bounds allow."""
    total = setting.total or 0
    count, rows = setting.count, setting.rows
    rest = min(max(total - least * count, 0), (most - least) * count)
    room = most - least
    values = np.full(count, least, np.int64)
    if setting.pattern in ("full", "alternate", "one_full"):
        # As many full rows as possible, in random order.
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
    spread = _spread(values + parts, most).reshape(1, -1)
    return _with_small(spread, setting, least, most, summed=True).reshape(rows.shape)


def _spread(values: Ints, most: int) -> Ints:
    excess = int(np.maximum(values - most, 0).sum())
    values = np.minimum(values, most)
    room = most - values
    before = np.cumsum(room) - room
    spread: Ints = values + np.clip(excess - before, 0, room)
    return spread


def _with_sum(values: Ints, total: int, least: int, most: int) -> Ints:
    """Change values within their bounds so that their sum is `total`, if that is possible. The
    first values are changed first."""
    excess = int(values.sum()) - total
    spare = values - least if excess > 0 else most - values
    before = np.cumsum(spare) - spare
    change: Ints = np.clip(abs(excess) - before, 0, spare)
    return values - change if excess > 0 else values + change


def _fitting(values: Array, setting: Setting) -> Array | None:
    least, most = _length_bounds(setting)
    fitted = np.clip(values.astype(np.int64), least, most).reshape(-1)
    if setting.total is None:
        return fitted.reshape(values.shape)
    fitted = _with_sum(fitted, setting.total, least, most)
    return fitted.reshape(values.shape) if int(fitted.sum()) == setting.total else None


RAGGED = {"offsets": Kind(_offsets, _rising), "lengths": Kind(_lengths, _fitting)}
