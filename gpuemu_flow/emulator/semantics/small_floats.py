"""Eight-bit floating-point formats (PTX ISA, "Alternate Floating-Point Data Formats")."""

from __future__ import annotations

import numpy as np

from gpuemu_flow.emulator.types import Array

_BIAS = {"e4m3": 7, "e5m2": 15}
_MANTISSA = {"e4m3": 3, "e5m2": 2}
_LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}


def _table(kind: str) -> Array:
    """Return the value of each of the 256 codes of a format."""
    values = np.zeros(256, np.float32)
    bits, bias = _MANTISSA[kind], _BIAS[kind]
    for code in range(256):
        exponent, fraction = (code & 0x7F) >> bits, code & ((1 << bits) - 1)
        if kind == "e4m3" and code & 0x7F == 0x7F:
            value = np.nan
        elif kind == "e5m2" and exponent == 31:
            value = np.inf if fraction == 0 else np.nan
        elif exponent == 0:
            value = fraction * 2.0 ** (1 - bias - bits)
        else:
            value = (1 + fraction / (1 << bits)) * 2.0 ** (exponent - bias)
        values[code] = -value if code & 0x80 else value
    return values


_TABLES = {kind: _table(kind) for kind in _BIAS}


def unpack_fp8(codes: Array, kind: str) -> Array:
    """Widen 8-bit floats to float32."""
    return _TABLES[kind][codes]


def pack_fp8(x: Array, kind: str, *, relu: bool = False) -> Array:
    """Round values to 8-bit floats (``.rn.satfinite``), saturating at the largest finite number."""
    magnitudes = _TABLES[kind][: 127 if kind == "e4m3" else 124].astype(np.float64)
    value = x.astype(np.float64)
    if relu:
        value = np.where(value < 0, 0.0, value)
    size = np.minimum(np.abs(value), _LARGEST[kind])
    size = np.where(np.isnan(size), 0.0, size)
    above = np.searchsorted(magnitudes, size)
    below = np.maximum(above - 1, 0)
    above = np.minimum(above, len(magnitudes) - 1)
    up, down = magnitudes[above] - size, size - magnitudes[below]
    even = above % 2 == 0
    code = np.where((up < down) | ((up == down) & even), above, below)
    code = np.where(magnitudes[above] == size, above, code).astype(np.uint8)
    code = code | np.where(np.signbit(value), np.uint8(0x80), np.uint8(0))
    return np.where(np.isnan(x), np.uint8(0x7F), code)
