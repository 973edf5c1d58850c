"""Compare one output with its expected values in blocks; most blocks need only a quick proof.

For each block of elements, a handful of vector operations first tries to prove that all pass, in
the narrowest arithmetic that can show it. The proof holds if the largest error is finite, and if
the largest ratio of error to tolerance is below 1 by more than the rounding errors of these
operations. In that case, no element is NaN or Inf. All other blocks are judged element by element
in float64.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import (
    NON_FINITE_DISTANCE,
    Float64Array,
    FloatLimits,
    max_spacings_finite,
    max_steps_finite,
    spacing,
    to_float32,
    to_float64,
    ulp_distance,
)
from gpuemu_flow.numerics.judge import (
    Bound,
    Judgement,
    Rules,
    Where,
    judge,
    judge_integers,
)
from gpuemu_flow.numerics.statistics import (
    FULL_EXTREMES,
    Sample,
    Totals,
    make_sample,
    relative_errors,
    sample_positions,
)

Array = NDArray[Any]

BLOCK_BYTES = 192 << 10
"""Bytes per block in the arithmetic used: two buffers and two operands fit 1 MiB of cache."""

_scratch = threading.local()

_PADDING = 128  # keeps buffers from lying a power of two apart, where they compete for cache lines


class BlockedOutcome(Struct, frozen=True):
    """The comparison of one output: totals over all elements, and a sample for percentiles."""

    totals: Totals
    sample: Sample
    stopped: bool = False


class Proof(NamedTuple):
    """Bounds on the errors of a block that was proven to pass."""

    max_abs: float
    sum_abs: float
    share: float


class Prover:
    """Tries to show with few vector operations that every element of a block passes.

    An element passes if ``|a-e| <= atol + rtol*|e|``, where a is its actual and e its expected
    value. The proof divides instead, which saves a multiplication per element::

        |a-e| / (|e| + atol/rtol) <= (1 - 8*epsilon) * rtol

    The factor ``1 - 8*epsilon`` covers the three roundings on the left side. Each of them is
    relative and at most half an epsilon, since a subnormal difference or sum is exact. Besides,
    ``atol/rtol`` is rounded down, which can only make the left side larger. If `rtol` is 0, the
    largest error is compared with `atol` times the same factor. If a or e is NaN or Inf, the
    largest error is NaN or infinite, and there is no proof.
    """

    def __init__(self, atol: float, rtol: float, work: np.dtype[Any]) -> None:
        self._work = work
        self._atol = atol
        self._rtol = rtol
        self._limit = 1.0 - 8.0 * float(np.finfo(work).eps)
        self._offset = _round_down(atol / rtol, work) if rtol else work.type(0)
        self.block = BLOCK_BYTES // work.itemsize
        self._buffers = _work_buffers(self.block + _PADDING, work)

    @staticmethod
    def provable(atol: float, rtol: float, work: np.dtype[Any]) -> bool:
        """Tell whether `rtol` and ``atol/rtol`` are well within the range of the dtype `work`."""
        far = 2.0**100 if work == np.float32 else 2.0**900
        return rtol == 0.0 or (rtol >= 1.0 / far and atol / rtol <= far)

    def prove(self, actual: Array, expected: Array) -> Proof | None:
        """Prove that a 1-d block of at most `block` elements passes; return None if that fails."""
        error = self._buffers[0, : actual.size]
        operand_e = self._widen(expected, 2)
        np.subtract(self._widen(actual, 1), operand_e, out=error)
        np.abs(error, out=error)
        max_abs = float(np.maximum.reduce(error))
        if not max_abs < math.inf:
            return None
        if max_abs == 0.0:
            return Proof(0.0, 0.0, 0.0)
        share = self._share(error, operand_e, max_abs)
        if not share <= self._limit:
            return None
        total = float(np.einsum("i->", error))
        if not total < math.inf:
            total = float(np.add.reduce(error, dtype=np.float64))
        return Proof(max_abs, total, share)

    def max_rel(self, expected: Array, proof: Proof) -> float:
        """Return the largest ``|a-e| / |e|`` in the block just proven, where ``e != 0``."""
        if self._rtol and not self._offset:
            return proof.share * self._rtol
        operand_e = self._widen(expected, 2)
        error = self._buffers[0, : expected.size]
        scale = self._buffers[3, : expected.size]
        np.abs(operand_e, out=scale)
        np.divide(error, scale, out=scale)
        largest = float(np.fmax.reduce(scale))
        if largest < math.inf:
            return largest
        # NaN: every quotient is 0/0. Infinite: an expected zero, or a quotient out of range.
        relative = relative_errors(error.astype(np.float64), operand_e.astype(np.float64))
        return float(relative.max()) if relative.size else 0.0

    def extremes(self, actual: Array, expected: Array) -> NDArray[np.intp]:
        """Return the positions, in a block that passes, of the largest error and largest share. An
        element's share is its error divided by its tolerance."""
        proof = self.prove(actual, expected)
        error, scale = self._buffers[0, : actual.size], self._buffers[3, : actual.size]
        at = {int(error.argmax())}
        if proof is not None and proof.max_abs > 0.0 and self._rtol:
            at.add(int(np.nanargmax(scale)))
        return np.array(sorted(at), dtype=np.intp)

    def max_ulp(self, actual: Array, expected: Array, fmt: FloatLimits) -> float:
        """Return the largest error in ulp of the block that `prove` has just proven. If both arrays
        have the same dtype, the error in ulp is the number of steps between the values. For float64
        expected values, it is the error divided by the spacing of `fmt` at the expected value."""
        if actual.dtype == expected.dtype:
            return float(max_steps_finite(actual, expected, self._buffers[3]))
        error = self._buffers[0, : actual.size]
        return max_spacings_finite(error, self._widen(expected, 2), fmt, self._buffers[3])

    def _share(self, error: Array, operand_e: Array, max_abs: float) -> float:
        if not self._rtol:
            return max_abs / self._atol if self._atol else math.inf
        scale = self._buffers[3, : error.size]
        np.abs(operand_e, out=scale)
        if self._offset:
            np.add(scale, self._offset, out=scale)
        np.divide(error, scale, out=scale)
        # 0/0 where both sides are zero and atol is 0: fmax skips it.
        return float(np.fmax.reduce(scale)) / self._rtol

    def _widen(self, block: Array, slot: int) -> Array:
        if block.dtype == self._work:
            return block
        if block.itemsize < 4:
            block = to_float32(block)
            if self._work == np.float32:
                return block
        widened = self._buffers[slot, : block.size]
        np.copyto(widened, block)
        return widened


def _work_buffers(length: int, work: np.dtype[Any]) -> Array:
    """Return this thread's four rows of scratch memory, reused because new memory is slow."""
    kept: dict[str, Array] = _scratch.__dict__
    key = f"{work.name}/{length}"
    if key not in kept:
        kept[key] = np.empty((4, length), work)
    return kept[key]


def _round_down(value: float, work: np.dtype[Any]) -> Any:
    rounded = work.type(value)
    return np.nextafter(rounded, work.type(0)) if float(rounded) > value else rounded


def make_prover(bound: Bound, actual: Array, expected: Array) -> Prover | None:
    """Return a prover that elements are within a bound; None if no proof is possible. The bound and
    the dtypes of the two arrays decide whether a proof is possible."""
    if bound.proof is None:
        return None
    atol, rtol = bound.proof
    wide = max(actual.dtype.itemsize, expected.dtype.itemsize) > 4
    work = np.dtype(np.float64 if wide else np.float32)
    return Prover(atol, rtol, work) if Prover.provable(atol, rtol, work) else None


def paired_blocks(
    actual: Array, expected: Array, size: int = BLOCK_BYTES // 8
) -> Iterator[tuple[int, Array, Array]]:
    """Yield blocks of two arrays in C order, each as (flat start, actual block, expected block).
    Blocks are 1-d and have at most `size` elements. Contiguous arrays give views; others are copied
    block by block into a buffer that the next step overwrites."""
    if actual.flags.c_contiguous and expected.flags.c_contiguous:
        flat_a, flat_e = actual.reshape(-1), expected.reshape(-1)
        for start in range(0, flat_a.size, size):
            yield start, flat_a[start : start + size], flat_e[start : start + size]
        return
    start = 0
    pairs = np.nditer(
        [actual, expected],
        flags=["external_loop", "buffered", "zerosize_ok"],
        order="C",
        buffersize=size,
    )
    for block_a, block_e in pairs:
        for at in range(0, block_a.size, size):  # an unbuffered inner loop may be longer
            part = block_a[at : at + size]
            yield start, part, block_e[at : at + size]
            start += part.size


def take(array: Array, where: Where) -> Array:
    """Return the elements at flat positions in C order; a strided array is not copied."""
    if array.flags.c_contiguous:
        return array.reshape(-1)[where]
    positions = np.arange(array.size)[where] if isinstance(where, slice) else where
    taken: Array = array[np.unravel_index(positions, array.shape)]
    return taken


def compare_floats(
    actual: Array,
    expected: Array,
    bound: Bound,
    rules: Rules,
    fmt: FloatLimits | None,
    *,
    stop_at_failure: bool = False,
) -> BlockedOutcome:
    """Compare a float output, with only a few blocks of additional memory."""
    comparison = _FloatComparison(actual, expected, bound, rules, fmt)
    with np.errstate(all="ignore"):
        return comparison.run(stop_at_failure=stop_at_failure)


class _FloatComparison:
    """The state of one `compare_floats` call."""

    def __init__(
        self, actual: Array, expected: Array, bound: Bound, rules: Rules, fmt: FloatLimits | None
    ) -> None:
        self._actual = actual
        self._expected = expected
        self._bound = bound
        self._rules = rules
        self._fmt = fmt
        self._totals = Totals()
        # Proven blocks with the largest error and the largest share: (value, start, size).
        self._largest_error = (0.0, 0, 0)
        self._largest_share = (0.0, 0, 0)

    def run(self, *, stop_at_failure: bool) -> BlockedOutcome:
        count = self._actual.size
        positions = sample_positions(count)
        if positions is None:
            return BlockedOutcome(self._totals, self._judge_all())
        prover = make_prover(self._bound, self._actual, self._expected)
        every = -(-count // FULL_EXTREMES)  # one of this many blocks is searched for extremes
        size = BLOCK_BYTES // 8 if prover is None else prover.block
        for start, block_a, block_e in paired_blocks(self._actual, self._expected, size):
            extremes = start // size % every == 0
            if prover is not None and self._prove(prover, start, block_a, block_e, extremes):
                continue
            self._judge_block(start, block_a, block_e)
            if stop_at_failure and self._totals.failing:
                return BlockedOutcome(self._totals, Sample(np.zeros(0)), stopped=True)
        if prover is not None:
            for start, length in {self._largest_error[1:], self._largest_share[1:]} - {(0, 0)}:
                self._refine(prover, start, length)
        return BlockedOutcome(self._totals, self._sample(positions))

    def _prove(
        self, prover: Prover, start: int, block_a: Array, block_e: Array, extremes: bool
    ) -> bool:
        proof = prover.prove(block_a, block_e)
        if proof is None:
            return False
        totals, size = self._totals, block_a.size
        totals.add_proven(size, proof.sum_abs)
        if proof.max_abs > self._largest_error[0]:
            self._largest_error = (proof.max_abs, start, size)
        if proof.share > self._largest_share[0]:
            self._largest_share = (proof.share, start, size)
        if extremes:
            if proof.max_abs > 0.0:
                totals.max_rel = max(totals.max_rel, prover.max_rel(block_e, proof))
            if self._fmt is not None:
                totals.max_ulp = max(totals.max_ulp, prover.max_ulp(block_a, block_e, self._fmt))
        return True

    def _judge_block(self, start: int, block_a: Array, block_e: Array) -> None:
        wide_a, wide_e = to_float64(block_a), to_float64(block_e)
        where = slice(start, start + wide_a.size)
        judgement = judge(wide_a, wide_e, self._bound, where, self._rules)
        self._totals.add(judgement, wide_a, wide_e, start)
        self._add_max_ulp(judgement, block_a, block_e)

    def _refine(self, prover: Prover, start: int, size: int) -> None:
        where = slice(start, start + size)
        block_a, block_e = take(self._actual, where), take(self._expected, where)
        at = start + prover.extremes(block_a, block_e)
        sample_a, sample_e = take(self._actual, at), take(self._expected, at)
        wide_a, wide_e = to_float64(sample_a), to_float64(sample_e)
        judgement = judge(wide_a, wide_e, self._bound, at, self._rules)
        self._totals.add_extremes(judgement, wide_a, wide_e, at)
        self._add_max_ulp(judgement, sample_a, sample_e)

    def _judge_all(self) -> Sample:
        block_a, block_e = self._actual.reshape(-1), self._expected.reshape(-1)
        wide_a, wide_e = to_float64(block_a), to_float64(block_e)
        judgement = judge(wide_a, wide_e, self._bound, slice(0, wide_a.size), self._rules)
        self._totals.add(judgement, wide_a, wide_e, 0)
        ulps = self._ulps(judgement, block_a, block_e)
        return make_sample(judgement, wide_e, ulps, 1.0)

    def _sample(self, positions: NDArray[np.intp]) -> Sample:
        block_a, block_e = take(self._actual, positions), take(self._expected, positions)
        wide_a, wide_e = to_float64(block_a), to_float64(block_e)
        judgement = judge(wide_a, wide_e, self._bound, positions, self._rules)
        ulps = self._ulps(judgement, block_a, block_e)
        return make_sample(judgement, wide_e, ulps, self._actual.size / positions.size)

    def _add_max_ulp(self, judgement: Judgement, block_a: Array, block_e: Array) -> None:
        ulps = self._ulps(judgement, block_a, block_e)
        if ulps is not None and ulps.size:
            self._totals.max_ulp = max(self._totals.max_ulp, float(ulps.max()))

    def _ulps(self, judgement: Judgement, block_a: Array, block_e: Array) -> Float64Array | None:
        """Return the error in ulp of each element. It is the number of steps between the values if
        both blocks have the same dtype, else ``|a-e| / spacing``. It is 0 where NaN or Inf match
        and where there is no verdict, and `NON_FINITE_DISTANCE` where NaN or Inf do not match."""
        if self._fmt is None:
            return None
        if block_a.dtype == block_e.dtype:
            ulps = ulp_distance(block_a, block_e).astype(np.float64)
        else:
            ulps = judgement.error / spacing(to_float64(block_e), self._fmt)
        if judgement.finite is not None:
            special = np.where(judgement.error == 0.0, 0.0, float(NON_FINITE_DISTANCE))
            ulps = np.where(judgement.finite, ulps, special)
        if judgement.unjudged is not None:
            ulps[judgement.unjudged] = 0.0
        return ulps


def compare_integers(actual: Array, expected: Array, bound: Bound) -> BlockedOutcome:
    """Compare integers or booleans of one dtype; exact unless `bound` allows an error. Booleans are
    compared by truth value. The statistics hold absolute and relative errors and no ulp;
    percentiles are sampled beyond `EXACT_SIZE` elements."""
    totals = Totals()
    for start, block_a, block_e in paired_blocks(actual, expected):
        if np.array_equal(block_a, block_e):
            totals.add_proven(block_a.size, 0.0)
            continue
        where = slice(start, start + block_a.size)
        judgement, wide_a, wide_e = _judge_integer_block(block_a, block_e, bound, where)
        totals.add(judgement, wide_a, wide_e, start)
    positions = sample_positions(actual.size)
    if positions is None:
        positions = np.arange(actual.size)
    weight = actual.size / positions.size if positions.size else 1.0
    sampled_a, sampled_e = take(actual, positions), take(expected, positions)
    judgement, _, wide_e = _judge_integer_block(sampled_a, sampled_e, bound, positions)
    return BlockedOutcome(totals, make_sample(judgement, wide_e, None, weight))


def _judge_integer_block(
    block_a: Array, block_e: Array, bound: Bound, where: Where
) -> tuple[Judgement, Float64Array, Float64Array]:
    if block_a.dtype == np.bool_:
        # A byte other than 0 and 1 is true; numpy compares such bytes as they are.
        block_a, block_e = ((b.view(np.uint8) != 0).view(np.uint8) for b in (block_a, block_e))
    judgement = judge_integers(block_a, block_e, bound, where)
    return judgement, block_a.astype(np.float64), block_e.astype(np.float64)
