"""Kinds of inputs that constrain single numbers: positive, quantized, packed."""

from __future__ import annotations

import numpy as np

from gpuemu_flow.cases.kinds.setting import Array, Kind, Setting
from gpuemu_flow.numerics.dtypes import float_limits
from gpuemu_flow.types import DTYPES

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
        known = np.array(rule.values)
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
