"""Barrier objects in shared memory (PTX ISA, "mbarrier"): a phase, arrivals and bytes awaited.

An object has 64 bits. Their meaning is up to the implementation; the emulator uses these fields,
from the lowest bit up:

- 20 bits: arrivals that the current phase still waits for
- 20 bits: arrivals that each new phase waits for
- 21 bits: bytes that the current phase still waits for, plus 2**20
- 3 bits: number of the current phase
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuemu_flow.emulator.types import Array

COUNT_BITS = 20
_COUNT = np.uint64((1 << COUNT_BITS) - 1)
_EXPECTED_AT = np.uint64(20)
_BYTES_AT = np.uint64(40)
_BYTES = np.uint64((1 << 21) - 1)
_NONE = np.int64(1 << 20)
_PHASE_AT = np.uint64(61)

Turn = Callable[[Array, Array, Array], Array]


def pending(word: Array) -> Array:
    """Return the number of arrivals that the current phase still waits for."""
    return word & _COUNT


def phase(word: Array) -> Array:
    """Return the number of the current phase, modulo 8."""
    return word >> _PHASE_AT


def fresh(count: Array) -> Array:
    """Return the 64-bit object that ``mbarrier.init`` makes for a count of arrivals."""
    wide = count.astype(np.uint64) & _COUNT
    return wide | wide << _EXPECTED_AT | np.uint64(1 << 20) << _BYTES_AT


def _changed(word: Array, arrivals: Array, awaited: Array, dropped: Array) -> Array:
    """Return a barrier object after a change; if its phase is then complete, begin the next
    phase."""
    left = np.maximum(pending(word).astype(np.int64) - arrivals, 0)
    expected = (word >> _EXPECTED_AT & _COUNT).astype(np.int64)
    expected = np.maximum(expected - dropped, 0)
    nbytes = (word >> _BYTES_AT & _BYTES).astype(np.int64) + awaited
    done = (left == 0) & (nbytes == _NONE)
    number = (phase(word) + done.astype(np.uint64)) & np.uint64(7)
    left = np.where(done, expected, left)
    parts = (left.astype(np.uint64) & _COUNT, expected.astype(np.uint64) & _COUNT,
             nbytes.astype(np.uint64) & _BYTES, number)  # fmt: skip
    return parts[0] | parts[1] << _EXPECTED_AT | parts[2] << _BYTES_AT | parts[3] << _PHASE_AT


def _signed(x: Array) -> Array:
    return x.view(np.int64)


def _arrive(old: Array, count: Array, nbytes: Array) -> Array:
    return _changed(old, _signed(count), _signed(nbytes), np.zeros_like(_signed(count)))


def _drop(old: Array, count: Array, nbytes: Array) -> Array:
    return _changed(old, _signed(count), _signed(nbytes), _signed(count))


def _more(old: Array, count: Array, _: Array) -> Array:
    """Expect more arrivals in this phase (``cp.async.mbarrier.arrive`` without ``.noinc``)."""
    return old + (count & _COUNT)


MBARRIER_TURNS: dict[str, Turn] = {
    "mbarrier.arrive": _arrive,
    "mbarrier.arrive_drop": _drop,
    "mbarrier.increment": _more,
}
"""Functions that return the barrier object after one thread's turn, given the object, a count of
arrivals, and the bytes awaited (negative: bytes that have arrived)."""
