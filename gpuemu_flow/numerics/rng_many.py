"""Values of several seeded streams drawn together, and gpuemu's own values of inputs.

Each row holds the values that `rng.SeededRng` gives for its seed, bit for bit. If rows are many and
short, all streams take each step together, by the same few vector operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.model.types import DTYPES, canonical_dtype
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.numerics.rng import (
    MASK64,
    ArrayDraws,
    SeededRng,
    State,
    derive_seed,
    initial_state,
    next_word,
)
from gpuemu_flow.numerics.rng_arrays import converted, draw, normals_f32, step_through

T = TypeVar("T")

FEWEST_STREAMS, WORDS_PER_STREAM = 3, 12
"""Fewest streams for which stepping them together is faster than looking up the words of each.

A step costs the same for any number of streams, and a look-up costs the same for any number of
words. Hence each `WORDS_PER_STREAM` words need one stream more.
"""

FEWEST_ARRAY = 12
"""Fewest streams for which drawing one word of each is faster with numpy."""


class SeededStreams(ArrayDraws):
    """The streams of several seeds; each draws the values that `SeededRng` draws for its seed."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = seeds
        self._states: list[State] = []

    def __len__(self) -> int:
        return len(self.seeds)

    def derive(self, domain: str) -> SeededStreams:
        """Return new streams, each of which depends only on its seed and on `domain`."""
        return SeededStreams([derive_seed(seed, domain) for seed in self.seeds])

    def some(self, numbers: NDArray[np.int64]) -> SeededStreams:
        """Return copies of the streams at the positions `numbers`, in their current states."""
        taken = SeededStreams([self.seeds[number] for number in numbers.tolist()])
        if self._states:
            taken._states = [self._states[number] for number in numbers.tolist()]
        return taken

    def _draw(self, kind: str, count: int) -> NDArray[Any]:
        """Return the next `count` values of each stream, shape (streams, count)."""
        states = self._states or [initial_state(seed) for seed in self.seeds]
        if len(states) >= FEWEST_STREAMS + count // WORDS_PER_STREAM:
            words = np.empty((count + 2, len(states)), np.uint64)
            words[:2] = np.array(states, np.uint64).T
            step_through(words)
            self._states = list(zip(*words[-2:].tolist(), strict=True))
            return np.ascontiguousarray(converted(kind, words).T)
        drawn = [draw(kind, state, count) for state in states]
        self._states = [state for _, state in drawn]
        rows = [row for row, _ in drawn]
        return rows[0].reshape(1, count) if len(rows) == 1 else np.stack(rows)

    def gen_range(self, low: int, high: int) -> NDArray[np.int64]:
        """Draw one integer in [low, high) from each stream; see `SeededRng.gen_range`."""
        span = high - low
        return np.array([low + word % span for word in self.words()], np.int64)

    def words(self) -> list[int]:
        """Return the next word of each stream."""
        if len(self.seeds) >= FEWEST_ARRAY:
            return [int(word) for word in self.u64(1)[:, 0].tolist()]
        states = self._states or [initial_state(seed) for seed in self.seeds]
        newest = [next_word(*state) for state in states]
        self._states = [(newer, new) for (_, newer), new in zip(states, newest, strict=True)]
        return [((new ^ newer) + newer) & MASK64 for newer, new in self._states]

    def choice(self, options: Sequence[T]) -> list[T]:
        """Return a random element of `options` for each stream."""
        return [options[index] for index in self.gen_range(0, len(options)).tolist()]

    def shuffled(self, count: int) -> NDArray[np.int64]:
        """Return the numbers below `count`, shuffled: one row for each stream, int64."""
        order = np.tile(np.arange(count), (len(self.seeds), 1))
        words = self.u64(count - 1)
        everyone = np.arange(len(self.seeds))
        for step, last in enumerate(range(count - 1, 0, -1)):
            other = (words[:, step] % np.uint64(last + 1)).astype(np.int64)
            order[everyone, other], order[:, last] = order[:, last], order[everyone, other]
        return order

    def normal_f32(self, n: int) -> NDArray[np.float32]:
        """Return `n` standard normal values of each stream, float32."""
        pairs = self.f64(n + (n & 1))
        return normals_f32(pairs.reshape(-1)).reshape(pairs.shape)[:, :n]


# The value strategy `uniform`: gpuemu's own input values, per dtype and bit for bit.

INTEGER_LOW, INTEGER_HIGH = -100, 100

_HALF_INFINITY = 0x7C00
_HALF_SMALLEST_NORMAL = 0x0400
_REBIAS_TO_HALF = (127 - 15) << 10


def truncate_to_half(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Truncate float32 values to half-precision bit patterns, as gpuemu does. Magnitudes below the
    smallest normal half become a signed zero. Magnitudes above the largest half, and NaN, become a
    signed infinity."""
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
    nearest even from float32. Raises UsageError: ``unknown-dtype``. Raises ValueError when `count`
    is negative."""
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
