"""Kinds of inputs that constrain the last two axes: symmetric and positive-definite matrices.

Their elements are computed without rounding from small integers and powers of two, so that every
machine gets the same values; no matrix product of floats is computed.
"""

from __future__ import annotations

import numpy as np

from gpuemu_flow.cases.kinds.setting import Array, Ints, Kind, Setting

LARGEST = 8
GRADES = 4


def _batch(setting: Setting) -> tuple[int, int]:
    size = setting.shape[-1]
    return setting.count // (size * size), size


def _ints(setting: Setting, name: str, count: int, low: int, last: int) -> Ints:
    return setting.rng.derive(name).ranges(count, low, last + 1)


def _mirrored(values: Array) -> Array:
    """Return the matrices with the upper triangle mirrored into the lower triangle."""
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
    """Tell whether the setting's dtype has no negative numbers."""
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
