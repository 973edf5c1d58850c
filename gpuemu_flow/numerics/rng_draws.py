"""Arrays of values from the generator's words: uniform floats, integers in a range."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics import rng_lanes
from gpuemu_flow.numerics.rng_jump import Words
from gpuemu_flow.numerics.rng_lanes import Conversion
from gpuemu_flow.numerics.rng_words import MASK64, State

_SHIFT_11, _SHIFT_40 = (np.array(s, dtype=np.uint64) for s in (11, 40))
_HALF_RANGE = np.array(1 << 52, dtype=np.int64)
_F64_STEP, _F32_STEP, _UNIFORM10_STEP = (np.array(s) for s in (2.0**-53, 2.0**-24, 10.0 * 2.0**-52))


def _words(words: Words, out: NDArray[np.uint64]) -> None:
    out[...] = words


def _unit_f64(words: Words, out: NDArray[np.float64]) -> None:
    np.right_shift(words, _SHIFT_11, words)
    # numpy converts int64 faster than uint64, and the top bit is free after the shift.
    np.multiply(words.view(np.int64), _F64_STEP, out)


def _unit_f32(words: Words, out: NDArray[np.float32]) -> None:
    np.right_shift(words, _SHIFT_40, words)
    np.multiply(words.view(np.int64), _F32_STEP, out, casting="same_kind")


def _uniform10(words: Words, out: NDArray[Any]) -> None:
    # 2f - 1 is exact for f = k / 2**53, so (k - 2**52) * (10 / 2**52) rounds where gpuemu does:
    # once in float64 and, when `out` is float32, once more on the way into it.
    np.right_shift(words, _SHIFT_11, words)
    centred = words.view(np.int64)
    np.subtract(centred, _HALF_RANGE, centred)
    np.multiply(centred, _UNIFORM10_STEP, out, casting="same_kind")


CONVERSIONS: dict[str, Conversion] = {
    "u64": Conversion(np.dtype(np.uint64), _words),
    "f64": Conversion(np.dtype(np.float64), _unit_f64),
    "f32": Conversion(np.dtype(np.float32), _unit_f32),
    "uniform10_f64": Conversion(np.dtype(np.float64), _uniform10),
    "uniform10_f32": Conversion(np.dtype(np.float32), _uniform10),
}


def draw(kind: str, state: State, count: int) -> tuple[NDArray[Any], State]:
    """Return `count` values of a `kind`, a key of `CONVERSIONS`, and the state after them."""
    return rng_lanes.fill(state, _checked(count), CONVERSIONS[kind])


def converted(kind: str, words: Words) -> NDArray[Any]:
    """Convert the words of several streams to values of a `kind`, a key of `CONVERSIONS`."""
    conversion = CONVERSIONS[kind]
    outputs = words[2:] ^ words[1:-1]
    outputs += words[1:-1]
    values = np.empty(outputs.shape, conversion.dtype)
    conversion.convert(outputs, values)
    return values


def _checked(count: int) -> int:
    count = operator.index(count)
    if count < 0:
        raise ValueError(f"cannot draw {count} values")
    return count


def fold_into_range(words: Words, low: int, high: int) -> NDArray[np.int64]:
    """Change each word in place to ``low + word % (high - low)``, and return them as int64.

    All integers from `low` to ``high - 1`` must be int64.
    """
    span = high - low
    if span <= MASK64:
        np.remainder(words, np.uint64(span), out=words)
    words += np.uint64(low & MASK64)  # two's complement: the sum wraps to the right int64
    return words.view(np.int64)
