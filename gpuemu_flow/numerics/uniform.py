"""The value strategy `uniform`: gpuemu's own input values, per dtype and bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.rng_many import SeededStreams
from gpuemu_flow.types import DTYPES, canonical_dtype

INTEGER_LOW, INTEGER_HIGH = -100, 100

_HALF_INFINITY = 0x7C00
_HALF_SMALLEST_NORMAL = 0x0400
_REBIAS_TO_HALF = (127 - 15) << 10


def truncate_to_half(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Truncate float32 values to half-precision bit patterns, as gpuemu does.

    Magnitudes below the smallest normal half become a signed zero. Magnitudes above the largest
    half, and NaN, become a signed infinity.
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    magnitude = ((bits & np.uint32(0x7FFFFFFF)) >> np.uint32(13)).astype(np.int32)
    magnitude -= np.int32(_REBIAS_TO_HALF)
    magnitude[magnitude < _HALF_SMALLEST_NORMAL] = 0
    np.minimum(magnitude, _HALF_INFINITY, out=magnitude)
    sign = (bits >> np.uint32(16)) & np.uint32(0x8000)
    patterns: NDArray[np.uint16] = (magnitude.view(np.uint32) | sign).astype(np.uint16)
    return patterns


def fill_uniform(
    rng: SeededRng | SeededStreams, count: int, dtype: str, *, protocol_v1: bool = False
) -> NDArray[Any]:
    """Draw `count` values from a stream or, with `SeededStreams`, `count` values from each stream.

    Each value is made from one 64-bit word of its stream. Floats are uniform in [-10, 10) and
    signed integers in [-100, 99]. Unsigned integers are the low bits of the word. A bool is true if
    the word is below 2**63. float16 is truncated from float32; the narrower formats are rounded to
    nearest even from float32.

    Raises UsageError: ``unknown-dtype``. Raises ValueError when `count` is negative.
    """
    target = numpy_dtype(dtype)
    spec = DTYPES[canonical_dtype(dtype) or dtype]
    if spec.name == "float64":
        return rng.uniform10_f64(count)
    if spec.kind == "float":
        values = rng.uniform10_f32(count)
        if spec.name == "float16" or (protocol_v1 and spec.name == "bfloat16"):
            return truncate_to_half(values).view(target)
        return values.astype(target, copy=False)
    if spec.kind == "int":
        return rng.ranges(count, INTEGER_LOW, INTEGER_HIGH).astype(target, copy=False)
    words = rng.u64(count)
    if spec.kind == "uint":
        return words.astype(target, copy=False)
    lower_half: NDArray[np.bool_] = words < np.uint64(1 << 63)
    return lower_half
