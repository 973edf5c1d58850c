"""Kinds of inputs that constrain rows or matrices: masks, probabilities, symmetric matrices.

The elements of matrices are computed without rounding from small integers and powers of two, so
that every machine gets the same values; no matrix product of floats is computed.
"""

from __future__ import annotations

import numpy as np

from gpuemu_flow.cases.kinds.setting import Array, Ints, Kind, Setting
from gpuemu_flow.numerics.dtypes import float_limits

HALF = 0.5
WEIGHTS = 1 << 20


def _mask(setting: Setting) -> Array:
    rows = setting.rows
    share = HALF if setting.rule.share is None else setting.rule.share
    columns = np.arange(rows.width)
    kept = setting.rng.f64(setting.count).reshape(rows.shape) < share
    length = setting.rng.derive("length").ranges(rows.number, 1, rows.width + 1)[:, None]
    if setting.pattern == "all":
        kept[:] = True
    elif setting.pattern == "prefix":
        kept = columns < length
    elif setting.pattern == "suffix":
        kept = columns >= rows.width - length
    elif setting.pattern == "one_first":
        kept = columns + np.zeros(rows.shape, np.int64) == 0
    elif setting.pattern == "one_last":
        kept = columns + np.zeros(rows.shape, np.int64) == rows.width - 1
    elif setting.pattern == "alternate":
        kept = (columns + np.arange(rows.number)[:, None]) % 2 == 0
    elif setting.pattern == "empty":
        if setting.rule.allow_empty_rows:
            kept[rows.every(2)] = False
            return kept
        # One element at a random place is the nearest to an empty row.
        kept = columns == rows.random_columns()[:, None]
    return kept if setting.rule.allow_empty_rows else _no_empty_rows(kept, rows.random_columns())


def _no_empty_rows(kept: Array, at: Array) -> Array:
    empty = np.flatnonzero(~kept.any(axis=1))
    kept[empty, at[empty]] = True
    return kept


def _fitted_mask(values: Array, setting: Setting) -> Array:
    kept = values.reshape(-1, setting.width).astype(bool)
    if not setting.rule.allow_empty_rows and setting.width:
        kept = _no_empty_rows(kept, np.zeros(len(kept), np.int64))
    return kept.reshape(values.shape)


def _one_hot(setting: Setting) -> Array:
    rows = setting.rows
    at = rows.random_columns()
    if setting.pattern == "first":
        at = np.zeros(rows.number, np.int64)
    elif setting.pattern == "last":
        at = np.full(rows.number, rows.width - 1)
    elif setting.pattern == "diagonal":
        at = np.arange(rows.number) % rows.width
    hot: Array = np.arange(rows.width) == at[:, None]
    return hot


def _fitted_one_hot(values: Array, setting: Setting) -> Array:
    rows = values.reshape(-1, setting.width).astype(np.float64)
    hot: Array = np.arange(setting.width) == rows.argmax(axis=1)[:, None]
    return hot.reshape(values.shape)


def _probabilities(setting: Setting) -> Array:
    rows = setting.rows
    weights = setting.draw(1, WEIGHTS)
    if setting.pattern == "even":
        weights[:] = 1
    elif setting.pattern == "certain":
        weights = (np.arange(rows.width) == rows.random_columns()[:, None]).astype(np.int64)
    elif setting.pattern == "zeros":
        weights[rows.coin_flips()] = 0
    elif setting.pattern == "tiny_tail":
        weights = setting.draw(1, 3)
        weights[np.arange(rows.number), rows.random_columns()] = WEIGHTS << 20
    weights[weights.sum(axis=1) == 0, 0] = 1
    # Sums of integers are exact, and a division is rounded once: equal on every machine.
    shares: Array = weights / weights.sum(axis=1, keepdims=True)
    if setting.pattern == "tiny_tail":
        limits = float_limits(setting.dtype)
        if limits.smallest_subnormal * rows.width < limits.eps:
            shares[weights == 1] = limits.smallest_subnormal
    return shares


def _fitted_probabilities(values: Array, setting: Setting) -> Array | None:
    rows = values.reshape(-1, setting.width).astype(np.float64)
    if not np.isfinite(rows).all():
        return None
    rows = np.abs(rows)
    rows[rows.sum(axis=1) == 0, 0] = 1.0
    shares: Array = rows / rows.sum(axis=1, keepdims=True)
    return shares.reshape(values.shape)


ROWS = {
    "mask": Kind(_mask, _fitted_mask),
    "one_hot": Kind(_one_hot, _fitted_one_hot),
    "probabilities": Kind(_probabilities, _fitted_probabilities),
}


LARGEST = 8
GRADES = 4


def _batch(setting: Setting) -> tuple[int, int]:
    size = setting.shape[-1]
    return setting.count // (size * size), size


def _ints(setting: Setting, name: str, count: int, low: int, last: int) -> Ints:
    return setting.rng.derive(name).ranges(count, low, last + 1)


def _mirrored(values: Array) -> Array:
    upper = np.triu(values)
    return upper + np.swapaxes(np.triu(values, 1), -1, -2)


def _symmetric(setting: Setting) -> Array:
    number, size = _batch(setting)
    unit = 0.125 if setting.floating else 1
    values = _ints(setting, "entries", setting.count, -80, 80).reshape(number, size, size)
    eye = np.eye(size, dtype=np.int64)
    if setting.pattern == "diagonal":
        values = values * eye
    elif setting.pattern == "zero":
        values = values * 0
    elif setting.pattern == "rank_one":
        vector = _ints(setting, "vector", number * size, -3, 3).reshape(number, size)
        values = 8 * vector[:, :, None] * vector[:, None, :]
    elif setting.pattern == "ties":
        values = values // 40 * 40
    elif setting.pattern == "graded" and setting.floating:
        scales = np.ldexp(1.0, -(np.arange(size) % GRADES).astype(np.intc))
        return _mirrored(values) * unit * scales[:, None] * scales
    if unsigned(setting):
        values = np.abs(values)
    return _mirrored(values) * unit


def unsigned(setting: Setting) -> bool:
    return setting.dtype.startswith("u") or setting.dtype == "bool"


def _fitted_symmetric(values: Array, setting: Setting) -> Array:
    return _mirrored(values)


def _positive_definite(setting: Setting) -> Array:
    number, size = _batch(setting)
    eye = np.eye(size, dtype=np.int64)
    if setting.pattern == "identity":
        return np.broadcast_to(eye, (number, size, size)) * 1.0
    if setting.pattern == "diagonal":
        diagonal = _ints(setting, "diagonal", number * size, 1, 64).reshape(number, size, 1)
        return diagonal * eye * 0.125
    if setting.pattern == "nearly_singular":
        # All ones, plus 1/16 on the diagonal: the condition number is about 16 times the size.
        return np.ones((number, size, size)) + eye * 0.0625
    entries = _ints(setting, "entries", setting.count, -LARGEST, LARGEST)
    values = _mirrored(entries.reshape(number, size, size))
    values = values * (1 - eye)
    sums = np.abs(values).sum(axis=-1)
    # Larger than the sum of the other elements, even after rounding to a narrow dtype.
    values = values + eye * (sums + sums // 8 + LARGEST)[:, :, None]
    if setting.pattern == "graded":
        scales = np.ldexp(1.0, -(np.arange(size) % GRADES).astype(np.intc))
        values = values * scales[:, None] * scales
    scaled: Array = values * 0.125
    return scaled


def _still_definite(values: Array, setting: Setting) -> Array | None:
    if not np.isfinite(values.astype(np.float64)).all():
        return None
    mirrored = _mirrored(values.astype(np.float64))
    if mirrored.size and float(np.linalg.eigvalsh(mirrored).min()) <= 0.0:
        return None
    return mirrored


MATRICES = {
    "symmetric": Kind(_symmetric, _fitted_symmetric),
    "positive_definite": Kind(_positive_definite, _still_definite),
}
