"""gpuemu's seeded generator, bit for bit: one value at a time, or as arrays on the same stream.

This module itself does without numpy, so that seeds and whole cases (shape, dtype, layout) can be
determined before numpy is loaded. The array methods load it on first use.
"""

from __future__ import annotations

import math
import operator
from collections.abc import MutableSequence, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from gpuemu_flow.numerics.rng_words import (
    MASK64,
    State,
    derive_seed,
    generate_seed,
    initial_state,
    next_word,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["MASK64", "SeededRng", "derive_seed", "generate_seed"]

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
