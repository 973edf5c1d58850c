"""Arrays of values from the generator's words, of one stream or of several streams at once.

Far places of a stream are found without stepping there. A step of `rng.next_word` uses only shifts
and exclusive-ors, so it is linear over GF(2), and a state is the exclusive-or of states with a
single bit set. Hence the words after these 128 states give the words after any state; see Haramoto
et al., "Efficient jump ahead for F2-linear random number generators", 2008. Bit ``j`` of a state is
bit ``j`` of the older word for ``j < 64``, else bit ``j - 64`` of the newer one.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.model.types import DTYPES, canonical_dtype
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.numerics.rng import (
    MASK64,
    SMALLEST_UNIFORM,
    ArrayDraws,
    SeededRng,
    State,
    box_muller,
    derive_seed,
    initial_state,
    next_word,
)

T = TypeVar("T")

Words = NDArray[np.uint64]

STATE_BITS = 128
SCALAR_LIMIT = 24  # up to it, stepping in Python beats the fixed cost of a look-up
PREFIX = 1024  # words that one look-up yields
LOOKUP_LIMIT = 8 * PREFIX  # up to it, look-ups beat lanes, which are then too few to be cheap
STRIDE = 128  # words per lane: fewer make more lanes to place, more make shorter rows
MAX_LANES = 2000  # at a time, so that the words of all lanes stay in the cache

SHIFT_23, SHIFT_17, SHIFT_26 = (np.array(s, dtype=np.uint64) for s in (23, 17, 26))


def subset_table(rows: Words, bits: int) -> Words:
    """Return, for each piece of a state, the exclusive-or of every subset of its `bits` rows. Entry
    ``[p, v]`` combines the rows of those bits of piece ``p`` that are set in the value ``v``.
    Looking up several bits at a time is the method of the Four Russians."""
    by_piece = rows.reshape(STATE_BITS // bits, bits, rows.shape[1])
    table = np.zeros((len(by_piece), 1 << bits, rows.shape[1]), dtype=np.uint64)
    for bit in range(bits):
        low, high = 1 << bit, 2 << bit
        np.bitwise_xor(table[:, :low], by_piece[:, bit : bit + 1], out=table[:, low:high])
    return table


def advanced(states: Words, table: Words) -> Words:
    """Return the states that lie ahead of `states`; `table` is a `jump_table`."""
    pieces = states.astype("<u8", copy=False).view(np.uint8)
    found = table.reshape(-1, table.shape[2]).take(pieces.T + _PIECES, axis=0)
    ahead: Words = np.bitwise_xor.reduce(found, axis=0)
    return ahead


_PIECES = 256 * np.arange(STATE_BITS // 8)[:, np.newaxis]


def basis_words(count: int) -> Words:
    """Return the states with only one bit set, and the `count` words that follow each of them."""
    words = np.empty((count + 2, STATE_BITS), dtype=np.uint64)
    powers = np.uint64(1) << np.arange(64, dtype=np.uint64)
    words[:2] = 0
    words[0, :64], words[1, 64:] = powers, powers
    step_through(words)
    return words


def step_through(words: Words) -> None:
    """Compute the words of several streams, one stream per column, in place. The first two rows of
    `words` are the streams' states; the following rows are filled. Two rows are computed at a time,
    because only the last term of a word depends on the word before it."""
    steps = len(words) - 2
    spares = np.empty_like(words[:2])
    spare = spares[0]
    for k in range(0, steps - 1, 2):
        two, newest = words[k : k + 2], words[k + 2 : k + 4]
        np.left_shift(two, SHIFT_23, newest)
        np.bitwise_xor(newest, two, newest)
        np.right_shift(newest, SHIFT_17, spares)
        np.bitwise_xor(newest, spares, newest)
        first, second = newest
        np.right_shift(two[1], SHIFT_26, spare)
        np.bitwise_xor(first, spare, first)
        np.right_shift(first, SHIFT_26, spare)
        np.bitwise_xor(second, spare, second)
    if steps % 2:
        older, newer, newest = words[-3:]
        np.left_shift(older, SHIFT_23, newest)
        np.bitwise_xor(newest, older, newest)
        np.right_shift(newest, SHIFT_17, spare)
        np.bitwise_xor(newest, spare, newest)
        np.right_shift(newer, SHIFT_26, spare)
        np.bitwise_xor(newest, spare, newest)


@functools.cache
def prefix_table() -> Words:
    """Return the table that yields a state and the `PREFIX` words that follow it."""
    return subset_table(basis_words(PREFIX).T, 4).reshape(-1, PREFIX + 2)


def words_after(state: State, count: int) -> Words:
    """Return the state and the `count` words after it, shape (count + 2,); count <= PREFIX."""
    if count > SCALAR_LIMIT:
        both = state[0] | (state[1] << 64)
        rows = [16 * piece + ((both >> (4 * piece)) & 15) for piece in range(STATE_BITS // 4)]
        found: Words = np.bitwise_xor.reduce(prefix_table()[rows, : count + 2], axis=0)
        return found
    words = list(state)
    for _ in range(count):
        words.append(next_word(words[-2], words[-1]))
    return np.array(words, dtype=np.uint64)


@functools.cache
def jump(doublings: int) -> Words:
    """Return the states ``STRIDE * 2**doublings`` steps after those with a single bit set."""
    if not doublings:
        return np.ascontiguousarray(basis_words(STRIDE)[STRIDE:].T)
    return advanced(jump(doublings - 1), jump_table(doublings - 1))


@functools.cache
def jump_table(doublings: int) -> Words:
    """Return the table by which `advanced` finds states ``STRIDE * 2**doublings`` steps ahead."""
    return subset_table(jump(doublings), 8)


def lane_starts(state: State, lanes: int) -> Words:
    """Return the states after 0, STRIDE, 2 * STRIDE ... steps, shape (lanes, 2)."""
    starts = np.empty((lanes, 2), dtype=np.uint64)
    starts[0] = state
    known, doublings = 1, 0
    while known < lanes:
        more = starts[known : 2 * known]
        more[...] = advanced(starts[: len(more)], jump_table(doublings))
        known, doublings = 2 * known, doublings + 1
    return starts


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


Convert = Callable[[Words, NDArray[Any]], None]
"""Turns uint64 words, which it may overwrite, into values in the array that it is given."""

CONVERSIONS: dict[str, tuple[np.dtype[Any], Convert]] = {
    "u64": (np.dtype(np.uint64), _words),
    "f64": (np.dtype(np.float64), _unit_f64),
    "f32": (np.dtype(np.float32), _unit_f32),
    "uniform10_f64": (np.dtype(np.float64), _uniform10),
    "uniform10_f32": (np.dtype(np.float32), _uniform10),
}


def converted(kind: str, words: Words) -> NDArray[Any]:
    """Turn states and the words after them into values of a `kind`, a key of `CONVERSIONS`."""
    dtype, convert = CONVERSIONS[kind]
    outputs = words[2:] ^ words[1:-1]
    outputs += words[1:-1]
    values = np.empty(outputs.shape, dtype)
    convert(outputs, values)
    return values


def draw(kind: str, state: State, count: int) -> tuple[NDArray[Any], State]:
    """Return `count` values of a `kind`, a key of `CONVERSIONS`, and the state after them."""
    count = operator.index(count)
    if count < 0:
        raise ValueError(f"cannot draw {count} values")
    if count > LOOKUP_LIMIT:
        return _draw_by_lanes(kind, state, count)
    pieces = []
    for first in range(0, max(count, 1), PREFIX):
        words = words_after(state, min(PREFIX, count - first))
        pieces.append(converted(kind, words))
        state = int(words[-2]), int(words[-1])
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces), state


def _draw_by_lanes(kind: str, state: State, count: int) -> tuple[NDArray[Any], State]:
    """Draw by generators that start `STRIDE` words apart in the stream and advance together."""
    starts = lane_starts(state, -(-count // STRIDE))
    values = np.empty((len(starts), STRIDE), CONVERSIONS[kind][0])
    for first in range(0, len(starts), MAX_LANES):
        some = starts[first : first + MAX_LANES]
        words = np.empty((STRIDE + 2, len(some)), dtype=np.uint64)
        words[:2] = some.T
        step_through(words)
        values[first : first + MAX_LANES] = converted(kind, words).T
    # The last lane is drawn in full; what exceeds `count` is cut off.
    used = count - (len(starts) - 1) * STRIDE
    return values.reshape(-1)[:count], (int(words[used, -1]), int(words[used + 1, -1]))


def fold_into_range(words: Words, low: int, high: int) -> NDArray[np.int64]:
    """Change each word in place to ``low + word % (high - low)``, and return them as int64. All
    integers from `low` to ``high - 1`` must be int64."""
    span = high - low
    if span <= MASK64:
        np.remainder(words, np.uint64(span), out=words)
    words += np.uint64(low & MASK64)  # two's complement: the sum wraps to the right int64
    return words.view(np.int64)


# Normal values from whole arrays of uniform values, equal to what the C library computes.

Doubles = NDArray[np.float64]

BLOCK = 4096  # pairs at a time, so that the temporaries stay in the cache
FEW = 96  # up to it, calls per value cost less than passes over arrays
ROUNDED_BITS = 29  # mantissa bits that float64 has and float32 has not
GUARD_ULPS = 4096  # of float64; hundreds of times the error of `approximate_normals`
NEAR_ZERO = 2.0**-20  # below it the error is not bounded by a few ulp

# pi in two parts: small multiples of the first are exact, the second carries the bits below it.
_PI_HIGH = math.floor(math.pi * 2.0**30) / 2.0**30
_PI_LOW = (math.pi - _PI_HIGH) + 1.2246467991473532e-16
# Taylor's series to x**19; on [-pi/2, pi/2] the first term left out is below 3e-16.
_SINE_SERIES = tuple((-1.0) ** n / math.factorial(2 * n + 1) for n in range(9, 0, -1))


def normals_f64(uniforms: Doubles) -> Doubles:
    """Turn pairs of uniform values into pairs of normal ones by the C library's functions."""
    draws = uniforms.tolist()
    pairs = map(box_muller, draws[0::2], draws[1::2])
    return np.array([value for pair in pairs for value in pair], dtype=np.float64)


def normals_f32(uniforms: Doubles) -> NDArray[np.float32]:
    """Return exactly the values of `normals_f64` rounded to float32, but faster. The values are
    first computed in float64 with vectorised functions. These differ from the C library's functions
    in the last bits of their results. The difference changes the float32 only if the float64 is
    near a rounding boundary. So only values near a boundary, and values near 0, are computed again
    with the C library."""
    if uniforms.size <= FEW:
        return normals_f64(uniforms).astype(np.float32)
    values = np.empty(uniforms.size, dtype=np.float32)
    for first in range(0, uniforms.size, 2 * BLOCK):
        block = uniforms[first : first + 2 * BLOCK]
        approximate = approximate_normals(block)
        rounded = values[first : first + block.size]
        rounded[...] = approximate
        for index in np.flatnonzero(_doubtful(approximate)).tolist():
            pair = index & ~1
            exact = box_muller(float(block[pair]), float(block[pair + 1]))
            rounded[index] = exact[index - pair]
    return values


def _doubtful(values: Doubles) -> NDArray[np.bool_]:
    """Return a mask of the approximate float64 values that may round to a wrong float32. These are
    values within `GUARD_ULPS` of a rounding boundary, and values near 0, whose errors may be
    larger."""
    tie = 1 << (ROUNDED_BITS - 1)
    distance = values.view(np.uint64) & np.uint64((1 << ROUNDED_BITS) - 1)
    distance -= np.uint64(tie - GUARD_ULPS)  # wraps to a large number below the boundary
    doubtful: NDArray[np.bool_] = distance <= np.uint64(2 * GUARD_ULPS)
    doubtful |= np.abs(values) < NEAR_ZERO
    return doubtful


def approximate_normals(uniforms: Doubles) -> Doubles:
    """Approximate the values of `normals_f64` with vectorised functions, which are faster. The
    errors are a few ulp. They may be larger in values whose magnitude is below `NEAR_ZERO`."""
    radius = np.maximum(uniforms[0::2], SMALLEST_UNIFORM)
    np.log(radius, radius)
    np.multiply(radius, -2.0, radius)
    np.sqrt(radius, radius)
    angle = uniforms[1::2] * (2.0 * math.pi)
    normals = np.empty(uniforms.size, dtype=np.float64)
    np.multiply(_cosine(angle), radius, normals[0::2])
    np.multiply(_sine(angle), radius, normals[1::2])
    return normals


def _sine(angle: Doubles) -> Doubles:
    """Return the sine of angles in [0, 2 pi]. Let k be ``angle / pi``, rounded to an integer. The
    sine is ``(-1)**k sin(angle - k pi)``."""
    half_turns = np.rint(angle * (1.0 / math.pi))  # 0, 1 or 2
    sign = half_turns - 1.0
    np.multiply(sign, sign, sign)
    np.multiply(sign, 2.0, sign)
    np.subtract(sign, 1.0, sign)
    return _signed_sine(angle, half_turns, sign)


def _cosine(angle: Doubles) -> Doubles:
    """Return the cosine of angles in [0, 2 pi]. Let k be 0 for angles below pi, else 1. The cosine
    is ``-(-1)**k sin(angle - (k + 1/2) pi)``."""
    half_turns = np.floor(angle * (1.0 / math.pi))  # 0 or 1; 2 only where the angle is 2 pi
    np.minimum(half_turns, 1.0, out=half_turns)
    sign = 2.0 * half_turns
    np.subtract(sign, 1.0, sign)
    np.add(half_turns, 0.5, half_turns)
    return _signed_sine(angle, half_turns, sign)


def _signed_sine(angle: Doubles, half_turns: Doubles, sign: Doubles) -> Doubles:
    """Return ``sign * sin(angle - half_turns * pi)`` for a difference in [-pi/2, pi/2]. The sine is
    computed from a series, because numpy's float64 sine branches on each value's quadrant."""
    scratch = half_turns * _PI_HIGH
    x = angle - scratch
    np.multiply(half_turns, _PI_LOW, scratch)
    np.subtract(x, scratch, x)
    np.multiply(x, sign, x)
    square = np.multiply(x, x, scratch)
    series = square * _SINE_SERIES[0]
    for coefficient in _SINE_SERIES[1:]:
        np.add(series, coefficient, series)
        np.multiply(series, square, series)
    np.multiply(series, x, series)
    return np.add(x, series, x)


# Values of several seeded streams drawn together, and gpuemu's own values of inputs. Each row holds
# the values that `rng.SeededRng` gives for its seed, bit for bit. If rows are many and short, all
# streams take each step together, by the same few vector operations.


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
