"""Basic steps of the random number generator: seeds, state words, and the Box-Muller transform."""

from __future__ import annotations

import hashlib
import math
import operator
import os

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
