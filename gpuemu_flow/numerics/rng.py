"""gpuemu's seeded generator, bit for bit: one value at a time, or as arrays on the same stream.

This module itself does without numpy, so that seeds and whole cases (shape, dtype, layout) can be
determined before numpy is loaded. The array methods load it on first use.
"""

from __future__ import annotations

import hashlib
import math
import operator
import os
from collections.abc import MutableSequence, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

State = tuple[int, int]

MASK64 = (1 << 64) - 1
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
SMALLEST_UNIFORM = 1e-300  # keeps the logarithm of a zero draw finite


def splitmix64(z: int) -> int:
    """Return one output of SplitMix64 for the counter `z`, a bijection on 64-bit integers.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    z = (z + GOLDEN_GAMMA) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def derive_seed(seed: int, domain: str) -> int:
    """Return the seed of the stream called `domain` under `seed`.

    The seed (8 bytes, little-endian) and the domain (UTF-8) are hashed by BLAKE2b with an 8-byte
    digest, which is read as a little-endian integer.
    """
    message = (operator.index(seed) & MASK64).to_bytes(8, "little") + domain.encode("utf-8")
    return int.from_bytes(hashlib.blake2b(message, digest_size=8).digest(), "little")


def generate_seed() -> int:
    """Return a fresh 64-bit seed from the system's entropy, different for each call."""
    return int.from_bytes(os.urandom(8), "little")


def initial_state(seed: int) -> State:
    """Return the two state words of a generator built with `seed`.

    They are SplitMix64 of the seed and of the seed plus one. SplitMix64 is a bijection, so the two
    words differ. The all-zero state, a fixed point of the recurrence, therefore cannot occur.
    """
    seed = operator.index(seed) & MASK64
    return splitmix64(seed), splitmix64((seed + 1) & MASK64)


def next_word(older: int, newer: int) -> int:
    """Return the state word that follows `older` and `newer`.

    The stream is a sequence of words w; the state is always the last two of them::

        w[i+2] = t ^ (t >> 17) ^ (w[i+1] >> 26)   where t = w[i] ^ (w[i] << 23)
        output[i] = (w[i+2] ^ w[i+1]) + w[i+1]

    This is gpuemu's variant of xorshift128+ (Vigna, "Further scramblings of Marsaglia's xorshift
    generators", 2017); it differs from the original in the word that it stores.
    """
    t = older ^ ((older << 23) & MASK64)
    return t ^ (t >> 17) ^ (newer >> 26)


def box_muller(first: float, second: float) -> tuple[float, float]:
    """Return two independent standard normal values from two uniform ones in [0, 1)."""
    radius = math.sqrt(-2.0 * math.log(max(first, SMALLEST_UNIFORM)))
    angle = 2.0 * math.pi * second
    return radius * math.cos(angle), radius * math.sin(angle)


T = TypeVar("T")


def _arrays() -> ModuleType:
    """Import and return the module that draws arrays; it needs numpy."""
    from gpuemu_flow.numerics import rng_arrays  # noqa: PLC0415

    return rng_arrays


class ArrayDraws:
    """Methods that draw arrays from one stream of random words, or from several streams at once.

    An array from one stream is 1-d. An array from several streams has one row for each stream.
    """

    __slots__ = ()

    def _draw(self, kind: str, count: int) -> NDArray[Any]:
        raise NotImplementedError

    def u64(self, n: int) -> NDArray[np.uint64]:
        """Return the next `n` words, uint64."""
        return self._draw("u64", n)

    def f64(self, n: int) -> NDArray[np.float64]:
        """Return `n` values of `gen_f64`, float64."""
        return self._draw("f64", n)

    def f32(self, n: int) -> NDArray[np.float32]:
        """Return `n` values of `gen_f32`, float32."""
        return self._draw("f32", n)

    def uniform10_f64(self, n: int) -> NDArray[np.float64]:
        """Return `n` values of ``(2 * gen_f64() - 1) * 10``, float64 in [-10, 10)."""
        return self._draw("uniform10_f64", n)

    def uniform10_f32(self, n: int) -> NDArray[np.float32]:
        """Return the values of `uniform10_f64` rounded to nearest even in float32, in [-10, 10]."""
        return self._draw("uniform10_f32", n)

    def ranges(self, n: int, low: int, high: int) -> NDArray[np.int64]:
        """Return `n` values of `gen_range`, int64.

        Raises ValueError: Unless -2**63 <= low < high <= 2**63.
        """
        if not -(1 << 63) <= low < high <= 1 << 63:
            raise ValueError(f"[{low}, {high}) is empty or exceeds int64")
        folded: NDArray[np.int64] = _arrays().fold_into_range(self.u64(n), low, high)
        return folded


class SeededRng(ArrayDraws):
    """A deterministic stream of 64-bit words, and the values drawn from them.

    Array methods draw the next `n` values of the same stream and leave the generator exactly where
    `n` single draws would.

    Raises TypeError when `seed` is not an integer.
    """

    __slots__ = ("_newer", "_older", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = operator.index(seed) & MASK64
        self._older, self._newer = initial_state(self._seed)

    def __repr__(self) -> str:
        return f"SeededRng(seed={self._seed}, state=({self._older:#018x}, {self._newer:#018x}))"

    @property
    def seed(self) -> int:
        """Return the seed that this generator was built with, below 2**64."""
        return self._seed

    @property
    def state(self) -> State:
        """Return the two state words, older first."""
        return self._older, self._newer

    def derive(self, domain: str) -> SeededRng:
        """Return a new generator, which depends only on the seed and on `domain`."""
        return SeededRng(derive_seed(self._seed, domain))

    # One value at a time: each takes one word of the stream unless it says otherwise.

    def gen_u64(self) -> int:
        """Return the next 64-bit word."""
        newest = next_word(self._older, self._newer)
        output = ((newest ^ self._newer) + self._newer) & MASK64
        self._older, self._newer = self._newer, newest
        return output

    def gen_f64(self) -> float:
        """Return a uniform value in [0, 1), a multiple of 2**-53."""
        return (self.gen_u64() >> 11) * 2.0**-53

    def gen_f32(self) -> float:
        """Return a uniform value in [0, 1), a multiple of 2**-24, hence exact in float32."""
        return (self.gen_u64() >> 40) * 2.0**-24

    def gen_range(self, low: int, high: int) -> int:
        """Return an integer in [low, high), by modulo as gpuemu does (slightly biased).

        Raises ValueError when the range is empty.
        """
        if low >= high:
            raise ValueError(f"empty range [{low}, {high})")
        return low + self.gen_u64() % (high - low)

    def choice_index(self, length: int) -> int:
        """Return a random index below `length`; raise ValueError if `length` is 0."""
        if length <= 0:
            raise ValueError(f"nothing to choose from: length {length}")
        return self.gen_u64() % length

    def choice(self, options: Sequence[T]) -> T:
        """Return a random element of `options`; raise ValueError if `options` is empty."""
        return options[self.choice_index(len(options))]

    def gen_bool(self, probability: float = 0.5) -> bool:
        """Return True with the given probability; 0 always gives False, and 1 always True."""
        return self.gen_f64() < probability

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Shuffle in place from the end (Fisher and Yates); consumes ``len(items) - 1`` words."""
        for last in range(len(items) - 1, 0, -1):
            other = self.gen_u64() % (last + 1)
            items[last], items[other] = items[other], items[last]

    # Arrays on the same stream.

    def _draw(self, kind: str, count: int) -> NDArray[Any]:
        values: NDArray[Any]
        values, (self._older, self._newer) = _arrays().draw(kind, self.state, count)
        return values

    def _uniform_pairs(self, n: int) -> NDArray[np.float64]:
        if n < 0:
            raise ValueError(f"cannot draw {n} values")
        return self.f64(n + (n & 1))

    def normal_f32(self, n: int) -> NDArray[np.float32]:
        """Return `n` standard normal values, float32; consumes an even number of words."""
        values: NDArray[np.float32] = _arrays().normals_f32(self._uniform_pairs(n))[:n]
        return values

    def normal_f64(self, n: int) -> NDArray[np.float64]:
        """Return `n` standard normal values, float64; consumes an even number of words.

        A value takes about half a microsecond, because each is computed by the C library's
        functions: numpy's differ in the last bit.
        """
        values: NDArray[np.float64] = _arrays().normals_f64(self._uniform_pairs(n))[:n]
        return values

    def randn(self, *shape: int | Sequence[int]) -> NDArray[np.float32]:
        """Return standard normal values, float32, of the shape in the arguments.

        Both ``randn(2, 3)`` and ``randn((2, 3))`` work; no argument means a 0-d array. The values
        are drawn in C order, by the method of Box and Muller (1958).
        """
        dims = _shape(shape)
        return self.normal_f32(math.prod(dims)).reshape(dims)

    def randn_f64(self, *shape: int | Sequence[int]) -> NDArray[np.float64]:
        """Return standard normal values as `randn` does, in float64."""
        dims = _shape(shape)
        return self.normal_f64(math.prod(dims)).reshape(dims)


def _shape(args: tuple[int | Sequence[int], ...]) -> tuple[int, ...]:
    """Return the dims in the arguments of `randn`: separate integers, or one sequence of them."""
    dims: Any = args
    try:
        return tuple(operator.index(dim) for dim in dims)
    except TypeError:
        if len(args) != 1:
            raise
        return tuple(operator.index(dim) for dim in dims[0])
