"""Error statistics, gathered block by block: exact figures, sampled figures, their combination."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from gpuemu_flow.model.types import ErrorStats, Lean
from gpuemu_flow.numerics.dtypes import (
    Float64Array,
    FloatLimits,
    numpy_dtype,
    spacing,
    to_float64,
)
from gpuemu_flow.numerics.judge import Judgement
from gpuemu_flow.numerics.layouts import multi_index

EXACT_SIZE = 8192
"""Outputs of up to this many elements have all their statistics exact."""

SAMPLE_SIZE = 4096
"""Elements of larger outputs from which percentiles and mean relative and ulp errors are taken."""

FULL_EXTREMES = 1 << 18
"""Outputs of up to this many elements have an exact largest relative and ulp error; in larger
ones, this many elements are examined, in blocks spread evenly."""

_HASH = np.uint64(0x9E3779B97F4A7C15)


@functools.lru_cache(maxsize=16)
def sample_positions(count: int) -> NDArray[np.intp] | None:
    """Return the ascending flat positions of the sampled elements; None means all elements. One
    position is taken from each of `SAMPLE_SIZE` equal spans; a multiplicative hash of the span's
    number decides which. The positions are the same for every output of that size, and do not align
    with rows or tiles. The rank of a sampled percentile p then has a standard error of at most
    ``sqrt(p (1 - p) / SAMPLE_SIZE)``: with 99 % confidence p50 lies between the exact 48th and 52nd
    percentiles, p90 between 88.8 and 91.2, p99 between 98.6 and 99.4."""
    if count <= EXACT_SIZE:
        return None
    number = np.arange(SAMPLE_SIZE, dtype=np.uint64)
    fraction = (number * _HASH >> np.uint64(11)).astype(np.float64) * 2.0**-53
    starts = number.astype(np.float64)
    positions = ((starts + fraction) * (count / SAMPLE_SIZE)).astype(np.intp)
    clipped: NDArray[np.intp] = np.clip(positions, 0, count - 1)
    clipped.setflags(write=False)
    return clipped


class Worst(Struct):
    """The worst element so far: the one whose error is the largest share of its tolerance. A
    mismatched NaN or Inf has an infinite share."""

    share: float = 0.0
    position: int | None = None
    actual: float = 0.0
    expected: float = 0.0

    @property
    def rank(self) -> tuple[bool, float]:
        return self.position is not None and math.isfinite(self.expected), self.share


class Totals(Struct):
    """Counts, sums and extremes over all elements of one output, added block by block."""

    count: int = 0
    judged: int = 0
    finite: int = 0  # judged, with a finite expected value
    nan: int = 0  # expected to be NaN, and right
    nan_unjudged: int = 0  # NaN without a verdict, where a finite value is expected
    failing: int = 0
    failing_values: int = 0  # failing, but neither as NaN nor by a strict policy alone
    failing_nan: int = 0
    failing_inf: int = 0
    first_nan: int | None = None
    first_inf: int | None = None
    sum_abs: float = 0.0
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float = 0.0
    share: float = 0.0
    worst: Worst = field(default_factory=Worst)
    worst_value: Worst = field(default_factory=Worst)

    def add_proven(self, count: int, sum_abs: float) -> None:
        """Add a block of `count` elements that are all known to be finite and to pass. `sum_abs` is
        the sum of their absolute errors."""
        self.count += count
        self.judged += count
        self.finite += count
        self.sum_abs += sum_abs

    def add(
        self, judgement: Judgement, actual: Float64Array, expected: Float64Array, start: int
    ) -> None:
        """Add a judged block whose first element has flat position `start`."""
        size = actual.size
        self.count += size
        kept = size
        error = judgement.error
        if judgement.unjudged is not None:
            kept -= int(np.count_nonzero(judgement.unjudged))
            error = np.where(judgement.unjudged, 0.0, error)
            of_op = judgement.unjudged & np.isnan(actual) & np.isfinite(expected)
            self.nan_unjudged += int(np.count_nonzero(of_op))
        self.judged += kept
        self._count_expected(judgement, expected, kept)
        self.sum_abs += float(np.add.reduce(error))
        self.add_extremes(judgement, actual, expected, start)
        self._count_failures(judgement, actual, expected, start)

    def _count_expected(self, judgement: Judgement, expected: Float64Array, judged: int) -> None:
        """Count judged elements with a finite expected value, and those that are rightly NaN."""
        if judgement.finite is None:
            self.finite += judged
            return
        finite, nan = np.isfinite(expected), np.isnan(expected) & ~judgement.failed
        if judgement.unjudged is not None:
            finite, nan = finite & ~judgement.unjudged, nan & ~judgement.unjudged
        self.finite += int(np.count_nonzero(finite))
        self.nan += int(np.count_nonzero(nan))

    def add_extremes(
        self,
        judgement: Judgement,
        actual: Float64Array,
        expected: Float64Array,
        start: int | NDArray[np.intp],
    ) -> None:
        """Update the largest errors and the worst element, but no counts and no sums. `start` is
        the flat position of the first element, or an array of all positions."""
        if actual.size == 0:
            return
        error, share = judgement.error, judgement.share
        if judgement.unjudged is not None:
            error = np.where(judgement.unjudged, 0.0, error)
            share = np.where(judgement.unjudged, 0.0, share)
        self.max_abs = max(self.max_abs, float(error.max()))
        at = int(share.argmax())
        if share[at] > self.worst.share:
            position = start + at if isinstance(start, int) else int(start[at])
            self.worst = Worst(float(share[at]), position, float(actual[at]), float(expected[at]))
        finite_share = share
        if judgement.finite is not None:
            finite_share = np.where(judgement.finite, share, 0.0)
        self.share = max(self.share, float(finite_share.max()))
        relative = relative_errors(error, expected)
        if relative.size:
            self.max_rel = max(self.max_rel, float(relative.max()))

    def _count_failures(
        self, judgement: Judgement, actual: Float64Array, expected: Float64Array, start: int
    ) -> None:
        failed = judgement.failed
        number = int(np.count_nonzero(failed))
        if not number:
            return
        self.failing += number
        nan, inf = failed & np.isnan(actual), failed & np.isinf(actual)
        # An Inf that a strict policy forbids fails by its policy alone, not by its value.
        values = failed & ~nan & (judgement.share > 0.0)
        counts = [int(np.count_nonzero(mask)) for mask in (values, nan, inf)]
        self.failing_values += counts[0]
        self.failing_nan += counts[1]
        self.failing_inf += counts[2]
        if counts[0]:
            finite = values & np.isfinite(expected)  # which says more: these are shown first
            wanted = finite if finite.any() else values
            at = int(np.where(wanted, judgement.share, -1.0).argmax())
            place = (start + at, float(actual[at]), float(expected[at]))
            worst = Worst(float(judgement.share[at]), *place)
            if worst.rank > self.worst_value.rank:
                self.worst_value = worst
        if counts[1] and self.first_nan is None:
            self.first_nan = start + int(nan.argmax())
        if counts[2] and self.first_inf is None:
            self.first_inf = start + int(inf.argmax())


def relative_errors(error: Float64Array, expected: Float64Array) -> Float64Array:
    """Return ``error / |expected|`` of the elements whose expected value is neither zero nor NaN. A
    mismatched Inf has an infinite relative error, a matching one has the error 0."""
    magnitude = np.abs(expected)
    mask = magnitude > 0.0
    if not mask.all():
        error, magnitude = error[mask], magnitude[mask]
    with np.errstate(all="ignore"):
        relative = error / magnitude
    relative[np.isnan(relative)] = np.inf
    return relative


class Sample(Struct, frozen=True):
    """Errors of those sampled elements of one output that have a verdict."""

    error: Float64Array
    # Number of elements that each sampled element stands for; 1 when all were taken
    weight: float = 1.0
    # Sums and counts of relative and ulp errors over the sample, unweighted
    rel_sum: float = 0.0
    rel_count: int = 0
    ulp_sum: float = 0.0
    ulp_count: int = 0
    max_rel: float = 0.0
    max_ulp: float = 0.0


def make_sample(
    judgement: Judgement, expected: Float64Array, ulps: Float64Array | None, weight: float
) -> Sample:
    """Return the statistics of sampled elements; `ulps` is None for integers and booleans."""
    error = judgement.error
    if judgement.unjudged is not None:
        kept = ~judgement.unjudged
        error, expected = error[kept], expected[kept]
        ulps = None if ulps is None else ulps[kept]
    relative = relative_errors(error, expected)
    return Sample(
        error=error,
        weight=weight,
        rel_sum=float(relative.sum()),
        rel_count=relative.size,
        ulp_sum=0.0 if ulps is None else float(ulps.sum()),
        ulp_count=0 if ulps is None else ulps.size,
        max_rel=float(relative.max()) if relative.size else 0.0,
        max_ulp=float(ulps.max()) if ulps is not None and ulps.size else 0.0,
    )


def combine(
    parts: Sequence[tuple[Totals, Sample, tuple[int, ...]]], unjudged: int | None = None
) -> ErrorStats:
    """Combine the statistics of all outputs of a case."""
    count = sum(totals.count for totals, _, _ in parts)
    if count == 0:
        return ErrorStats()
    judged = sum(totals.judged for totals, _, _ in parts)
    samples = [sample for _, sample, _ in parts]
    p50, p90, p99 = _percentiles(samples, (0.50, 0.90, 0.99))
    rel_weight = sum(s.weight * s.rel_count for s in samples)
    ulp_weight = sum(s.weight * s.ulp_count for s in samples)
    worst_totals, _, shape = max(parts, key=lambda part: part[0].worst.share)
    worst = worst_totals.worst
    found = worst.position is not None
    return ErrorStats(
        count=count,
        num_exceeding=sum(totals.failing for totals, _, _ in parts),
        num_no_verdict=count - judged if unjudged is None else unjudged,
        num_finite=sum(totals.finite for totals, _, _ in parts),
        max_abs=max(totals.max_abs for totals, _, _ in parts),
        mean_abs=sum(totals.sum_abs for totals, _, _ in parts) / judged if judged else 0.0,
        p50_abs=p50,
        p90_abs=p90,
        p99_abs=p99,
        max_rel=max(max(t.max_rel, s.max_rel) for t, s, _ in parts),
        mean_rel=sum(s.weight * s.rel_sum for s in samples) / rel_weight if rel_weight else 0.0,
        max_ulp=max(max(t.max_ulp, s.max_ulp) for t, s, _ in parts),
        mean_ulp=sum(s.weight * s.ulp_sum for s in samples) / ulp_weight if ulp_weight else 0.0,
        tolerance_used=max(totals.share for totals, _, _ in parts),
        worst_index=multi_index(worst.position, shape) if worst.position is not None else None,
        worst_expected=worst.expected if found else None,
        worst_actual=worst.actual if found else None,
    )


def _percentiles(samples: Sequence[Sample], levels: Sequence[float]) -> list[float]:
    """Return the percentiles of the errors in weighted samples, one for each level. The percentile
    p of n errors is the error of rank ``round(p * (n - 1))``, counted from 0. A rank halfway
    between two integers is rounded up. If the samples' weights differ, each error counts as many
    times as its sample's weight says."""
    error = np.concatenate([s.error for s in samples])
    if not error.size:
        return [0.0] * len(levels)
    if len({s.weight for s in samples if s.error.size}) == 1:
        ordered = np.sort(error)
        return [float(ordered[rank(level, error.size)]) for level in levels]
    weight = np.concatenate([np.full(s.error.size, s.weight) for s in samples])
    order = np.argsort(error, kind="stable")
    reached = np.cumsum(weight[order])
    # The element of rank k is the first one at which more than k elements have been passed.
    ranks = [rank(level, float(reached[-1])) for level in levels]
    at = np.minimum(np.searchsorted(reached, ranks, side="right"), error.size - 1)
    return [float(v) for v in error[order][at]]


def rank(level: float, count: float) -> int:
    """Return the position, from 0, of a percentile among `count` sorted values. `level` is the
    percentile as a share, such as 0.9. A position halfway between two values is rounded up."""
    return math.floor(level * (count - 1.0) + 0.5)


MOST_LEANING = 1 << 16
"""Number of an output's elements whose signed errors are looked at."""

LIMIT = 2.0
"""Largest error of an element, in ulp, that counts in the mean: cancellation makes larger ones."""

CUT_SHARE = 0.98
"""Share of results, one rounding or less toward zero, with which a cast is taken to truncate."""

MOST_CUT = -0.75
"""Mean error, in ulp, beyond which they do not come from truncation."""


def leaning(
    name: str, actual: Float64Array, expected: Float64Array, fmt: FloatLimits
) -> list[Lean | None]:
    """Return how the errors of each row lean; None for a row without elements that tell. Elements
    count if they are normal and far from the largest value, and if they had to be rounded or are
    wrong."""
    size = np.abs(expected)
    counted = (size >= 2.0 * fmt.smallest_normal) & (size <= fmt.max / 2) & np.isfinite(actual)
    with np.errstate(all="ignore"):
        rounded = to_float64(expected.astype(numpy_dtype(fmt.name)))
        counted &= (rounded != expected) | (actual != expected)
        ulps = np.where(counted, (actual - expected) * np.sign(expected), 0.0)
        ulps = np.where(counted, ulps / spacing(np.where(counted, expected, 1.0), fmt), 0.0)
    cut = ((ulps >= -1.01) & (ulps <= 0.01) & counted).sum(axis=1)
    counts = counted.sum(axis=1)
    sums = np.clip(ulps, -LIMIT, LIMIT).sum(axis=1)
    return [
        # What truncation loses is half a unit on average; on exact values it loses nothing.
        Lean(
            name,
            float(total) / int(count),
            int(count),
            bool(below >= CUT_SHARE * count and total > MOST_CUT * count),
        )
        if count
        else None
        for total, count, below in zip(sums, counts, cut, strict=True)
    ]
