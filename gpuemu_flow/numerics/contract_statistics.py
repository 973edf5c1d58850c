"""Random outputs: tests of the distribution that their elements are drawn from.

Each case is tested by itself, on all of its elements. The rate of false alarms that the contract
states is divided among the tests. Each test uses a bound that holds for few elements as well as for
many: no test assumes that a sum is normally distributed. All elements are tested together first. If
they pass, the next tests look for draws that repeat, and the last ones test each part alone (see
`random_parts`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.numerics.contract import Statistics
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, FloatLimits, dtype_name, to_float64
from gpuemu_flow.numerics.random_parts import (
    PartEvidence,
    Series,
    Zeros,
    divergences,
    grouped,
    wrong_part,
)

MOST_SHIFTED = 1 << 20
"""Elements of which all shifts are compared; larger outputs are represented by so many of them."""
CANDIDATES = 4
"""Likeliest shifts that are examined without the rounding of the transforms."""
ROUNDING = 1e-13
"""Share of a transform's largest result below which its other results are taken for rounding."""


def scaled_terms(terms: Wide, variance: float) -> tuple[Wide, float]:
    """Scale terms to magnitudes of at most 1, so that squares cannot overflow."""
    largest = float(np.abs(terms).max(initial=0.0)) or 1.0
    return terms / largest, variance / largest / largest


def neighbours(terms: Wide, axis: int) -> tuple[Wide, Wide]:
    """Return the first and the second elements of pairs of neighbours along an axis. Each element
    is in at most one pair."""
    moved = np.moveaxis(terms, axis, 0)
    return moved[: len(moved) - 1 : 2], moved[1::2]


def are_independent(first: Wide, second: Wide, at_least: float, variance: float) -> bool:
    """Tell whether two sets of terms look independent: their products add up to about 0.

    For independent terms, the answer is False with a probability of at most about
    ``2 * exp(-at_least)``.

    The answer is True if the square of the sum is at most ``2 * at_least`` times an estimate of the
    sum's variance. The estimate is the largest of these numbers:

    - The sum of the squared products.
    - The square of `variance`, times the number of products that are not 0. It is needed if there
      are few terms, their distribution is skewed, and all of them happen to be small.
    - If the sum is negative: the sum of the squares of `first`, times that of `second`, divided by
      the number of products. It does not depend on which terms are paired.

    The last number is needed for skewed terms, such as those of a mask that is nearly always 0.
    Their products are skewed, too: a few are large, and many small ones are negative. If no large
    product occurred, the sum is negative, and the squared products are far too small an estimate.

    The probability of a wrong False that is stated above is the one for products with a symmetric
    distribution. It also holds for negative sums of skewed products, because negative sums are on
    the side of the distribution's short tail.
    """
    products = first * second
    total, squares = float(products.sum()), float(np.square(products).sum())
    squares = max(squares, variance * variance * np.count_nonzero(products))
    if total < 0.0:
        apart = float(np.square(first).sum()) * float(np.square(second).sum()) / products.size
        squares = max(squares, apart)
    return total * total <= 2.0 * at_least * squares


def tile_lags(size: int) -> list[int]:
    """Return 2^k and 3 · 2^k up to half of `size`: distances after which tiles may repeat."""
    powers = [2**k for k in range(1, max(size, 2).bit_length())]
    return sorted(lag for power in powers for lag in (power, 3 * power // 2) if 2 * lag <= size)


def is_repeated(first: Wide, second: Wide, at_least: float, variance: float) -> bool:
    """Tell whether the sum of the terms' products is larger than independent terms would give.
    Repeated draws have positive products, so the answer is False if the sum is negative. A negative
    sum is no sign of dependence: it occurs if few terms are large, as in a mask that is nearly
    always 0, and no large term is paired with another. The parameters are those of
    `are_independent`."""
    repeated = float((first * second).sum()) > 0.0
    return repeated and not are_independent(first, second, at_least, variance)


def pairs(terms: Wide, lag: int) -> tuple[Wide, Wide]:
    """Return the first and the second elements of pairs that are `lag` places apart in memory. Each
    element is in at most one pair."""
    whole = terms.size // (2 * lag) * 2 * lag
    halves = terms.reshape(-1)[:whole].reshape(-1, 2, lag)
    return halves[:, 0], halves[:, 1]


def repeated_shift(terms: Wide, variance: float, rate: float) -> int | None:
    """Return a distance in memory after which draws repeat; None if they do not repeat. The test
    finds repeated rows and tiles of any length, and rows that are shifted copies of each other. It
    examines the first `MOST_SHIFTED` terms. Fourier transforms test all distances up to half the
    number of examined terms at once. The bound of `are_independent` needs products with independent
    signs. For a fixed distance, each term is in two products. Even so, if the signs of the terms
    are independent of each other, the signs of the products are independent of each other, too."""
    terms = terms.reshape(-1)[:MOST_SHIFTED]
    most = terms.size // 2
    if most < 1:
        return None
    at_least = math.log(2.0 * most / rate)
    length = _transform_length(terms.size + most)
    totals = _correlations(terms, length)[1 : most + 1]
    squares = _correlations(np.square(terms), length)[: most + 1]
    floor = ROUNDING * float(squares[0]) or 1.0
    clear = np.square(np.maximum(totals, 0.0)) / np.maximum(squares[1:], floor)
    for at in np.argsort(clear)[: -CANDIDATES - 1 : -1].tolist():
        if clear[at] <= 2.0 * at_least:
            return None
        lag = at + 1
        if is_repeated(terms[:-lag], terms[lag:], at_least, variance):
            return int(lag)
    return None


def _transform_length(least: int) -> int:
    """Return the smallest 2^k or 3 · 2^k that is at least `least`; such transforms are fast."""
    power = 1 << (least - 1).bit_length()
    return power * 3 // 4 if power * 3 // 4 >= least else power


def _correlations(terms: Wide, length: int) -> Wide:
    """Return, for each distance, the sum of the products of all pairs of terms at that distance.
    `length` is the length of the Fourier transform. If it exceeds the number of terms by d, the
    sums are right for distances up to d."""
    spectrum = np.fft.rfft(terms, length)
    found: Wide = np.fft.irfft(spectrum * spectrum.conj(), length)
    return found


def mirrored(terms: Wide) -> tuple[Wide, Wide] | None:
    """Return the pairs of elements at [..., i, j] and [..., j, i], as two arrays. The result is
    None if the last two axes differ in size or have a single index. A generator whose counter is a
    product or a sum of both indices gives the two elements of a pair the same draw."""
    if terms.ndim < 2 or terms.shape[-1] != terms.shape[-2] or terms.shape[-1] < 2:
        return None
    rows, columns = np.triu_indices(terms.shape[-1], 1)
    return terms[..., rows, columns], terms[..., columns, rows]


Array = NDArray[Any]
Wide = NDArray[np.float64]

MARGIN = 16.0
"""Only means between ``MARGIN`` times the smallest normal and 1/``MARGIN`` of the largest value are
tested: beyond them, a correct op overflows or rounds by as much as the mean."""

FAMILIES = 3
"""The tests of the whole, of shifts and of parts each have the same share of the false alarms."""

TRIED = 0.99 * 0.7 ** np.arange(12)
"""Shares of the inverse of the largest excess that `_has_std` tries as weights."""

LARGE_SQUARES = 3600.0
"""If the squares of n elements are all small, larger ones of up to this share of ``std^2 / n`` are
assumed to be possible."""


class StatisticsOutcome(Struct, frozen=True):
    """The result of the tests of one output."""

    count: int  # elements that were tested; 0 where there were too few
    failures: tuple[str, ...] = ()
    note: str = ""  # the reason why nothing was tested; empty where something was


def tested(
    name: str,
    values: Array,
    means: Array,
    statistics: Statistics,
    reference: Array | None = None,
) -> StatisticsOutcome:
    """Test the elements of one output against their distribution, and return the result."""
    fmt = FLOAT_LIMITS.get(dtype_name(values.dtype) or "")
    drawn, wanted = to_float64(values), to_float64(means)
    by_element = not isinstance(statistics.mean, float)
    telling = _telling(wanted, fmt, by_element=by_element)
    eps = 0.0 if fmt is None else fmt.eps
    what = "elements"
    if reference is not None and statistics.zeros is not None and by_element:
        groups = grouped(name, drawn, wanted, telling, to_float64(reference), eps)
        if groups is not None:
            if groups.failure:
                return StatisticsOutcome(int(np.count_nonzero(telling)), (groups.failure,))
            drawn, wanted, telling, what = groups.drawn, groups.wanted, groups.telling, groups.what
    count = int(np.count_nonzero(telling))
    if count < statistics.samples:
        needed = f"statistics of {name!r} need {statistics.samples} {what}"
        return StatisticsOutcome(
            0, note=f"{needed}; this case has {count} whose mean says anything"
        )
    broken = int(np.count_nonzero(telling & ~np.isfinite(drawn)))
    if broken:
        return StatisticsOutcome(
            count, (f"{broken} of {count} {what} of {name!r} are NaN or infinite",)
        )
    with np.errstate(all="ignore"):
        tests = _Tests(name, drawn, wanted, telling, statistics, eps, by_element=by_element)
        failures = tests.of_whole() or tests.of_shifts() or tests.of_parts()
    return StatisticsOutcome(count, tuple(failures))


class _Tests:
    """The tests of one output; each kind of test returns its failures."""

    def __init__(
        self,
        name: str,
        drawn: Wide,
        wanted: Wide,
        telling: NDArray[np.bool_],
        statistics: Statistics,
        eps: float,
        *,
        by_element: bool,
    ) -> None:
        self.name, self.wanted, self.telling = name, wanted, telling
        self.statistics, self.by_element = statistics, by_element
        self.count = int(np.count_nonzero(telling))
        self.share = statistics.false_alarms / FAMILIES
        off = np.where(telling, drawn - wanted, 0.0)
        rounding = eps * np.abs(np.where(telling, drawn, 0.0))
        dropped = statistics.zeros if by_element else None
        kept = None if dropped is None else dropped / max(1.0 - dropped, eps)
        size = np.where(telling, np.abs(wanted), 1.0)
        most = float(size.max(initial=0.0))
        wide = None if kept is None else (most * max(kept, 1.0),) * 2
        self.off = Series(off, rounding, self._off_text, wide)
        self.terms = self.off  # of one distribution, as far as is known
        self.variance = 0.0 if statistics.std is None else statistics.std**2
        if by_element:
            limits = None if kept is None else (1.0, kept)
            signs = np.where(wanted < 0.0, -1.0, 1.0)
            self.terms = Series(off * signs / size, rounding / size, self._times_text, limits)
            self.variance = kept or 0.0
        self.excess: Series | None = None
        if statistics.std is not None:
            squares = np.square(off)
            excess = np.where(telling, squares - statistics.std**2, 0.0)
            self.excess = Series(excess, 4.0 * eps * squares, self._std_text)
        self.zeros: Zeros | None = None
        if statistics.zeros is not None:
            self.zeros = Zeros(telling & (drawn == 0.0), statistics.zeros, self._zeros_text)

    def of_whole(self) -> list[str]:
        """Test all elements together, then test pairs of elements for independence. The elements of
        a pair are neighbours, or are as far apart in memory as a usual tile is long, or have their
        last two indices exchanged."""
        name, count, terms = self.name, self.count, self.terms.terms
        scaled, variance = scaled_terms(terms, self.variance)
        lags, opposite = tile_lags(terms.size), mirrored(scaled)
        tests = 1 + 2 * self.by_element + (self.excess is not None) + (self.zeros is not None)
        tests += terms.ndim + len(lags) + (opposite is not None)
        at_least = math.log(2.0 * tests / self.share)  # -log of each test's share
        failures = []
        if not self.off.terms.any():
            failures.append(f"nothing of {name!r} is random: every element is its mean")
        elif not self._is_centred(self.off, at_least):
            failures.append(self.off.text(float(self.off.terms.sum()) / count, ""))
        if self.by_element:
            if not self._is_centred(self.terms, at_least):
                failures.append(self.terms.text(float(terms.sum()) / count, ""))
            slope = self._slope(at_least)
            if not failures and slope is not None:
                failures.append(
                    f"the elements of {name!r} do not follow their means: the slope over these is"
                    f" {slope:.4g}, not 1"
                )
        excess = self.excess
        if excess is not None and not self._has_std(excess, at_least):
            failures.append(excess.text(float(excess.terms.sum()) / count, ""))
        if self.zeros is not None:
            zeros = int(np.count_nonzero(self.zeros.marks))
            share = np.array([zeros / count])
            if count * float(divergences(share, self.zeros.share)[0]) > at_least:
                failures.append(self.zeros.text(zeros, count, ""))
        failures += [
            f"neighbours along axis {axis} of {name!r} are not drawn independently"
            for axis in range(terms.ndim)
            if not are_independent(*neighbours(scaled, axis), at_least, variance)
        ]
        if failures:
            return failures
        lag = next((n for n in lags if is_repeated(*pairs(scaled, n), at_least, variance)), None)
        if lag is not None:
            return [self._lag_text(lag)]
        if opposite is not None and is_repeated(*opposite, at_least, variance):
            text = "whose last two indices are exchanged are not drawn independently"
            return [f"elements of {name!r} {text}"]
        return []

    def of_shifts(self) -> list[str]:
        """Search for draws that repeat after some distance in memory; try all distances."""
        if self.excess is None:
            scaled = scaled_terms(self.terms.terms, self.variance)
        else:
            scaled = scaled_terms(self.off.terms, (self.statistics.std or 0.0) ** 2)
        lag = repeated_shift(*scaled, self.share)
        return [] if lag is None else [self._lag_text(lag)]

    def of_parts(self) -> list[str]:
        series = [self.off, self.terms] if self.by_element else [self.off]
        series += [] if self.excess is None else [self.excess]
        means = self.wanted if self.by_element else None
        wrong = wrong_part(self.telling, means, series, self.zeros, self.share)
        return [] if wrong is None else [wrong]

    def _is_centred(self, series: Series, at_least: float) -> bool:
        """Tell whether the sum of a series is compatible with mean 0. The sum is incompatible if it
        exceeds the bound of the function `_is_centred`, which holds for symmetric terms. If the
        limits of the terms are known, it must also exceed a bound for skewed terms (see
        `PartEvidence`). The first bound alone would reject correct ops. For example, an op that
        drops a declared share of few elements may by chance drop none. All elements then exceed
        their means in magnitude."""
        if _is_centred(series.terms, series.rounding, at_least):
            return True
        if series.limits is None:
            return False
        whole = PartEvidence(series)
        return float(whole.of(*(np.array([a.sum()]) for a in whole.arrays))[0]) <= at_least

    def _has_std(self, excess: Series, at_least: float) -> bool:
        std = self.statistics.std or 0.0
        return _has_std(excess.terms, excess.rounding, self.count, std, at_least)

    def _slope(self, at_least: float) -> float | None:
        """Test that elements follow their means; return None if they do, else their slope. The
        slope is the weighted average of element / mean; it should be 1. It differs, for example, if
        the op computed the elements for other indices. Where a mean is small, a wrong element can
        be any multiple of it, so small means get small weights. The three quarters of the elements
        with the largest means have equal weights: the test must not depend on a few elements.
        `at_least` is as in the function `_is_centred`."""
        sizes = np.where(self.telling, np.abs(self.wanted), 0.0)
        quarter = np.quantile(sizes[self.telling], 0.25)
        weights = np.square(np.minimum(1.0, sizes / quarter))
        terms, rounding = self.terms.terms * weights, self.terms.rounding * weights
        if self._is_centred(replace(self.terms, terms=terms, rounding=rounding), at_least):
            return None
        return 1.0 + float(terms.sum() / weights.sum())

    def _which(self, where: str) -> str:
        return f"{self.name!r} {where}".rstrip()

    def _lag_text(self, lag: int) -> str:
        return f"elements of {self.name!r} that lie {lag} apart are not drawn independently"

    def _off_text(self, mean: float, where: str) -> str:
        comma = "" if where else ","
        which = self._which(where)
        return f"the elements of {which} lie off their means{comma} by {mean:.4g} on average"

    def _times_text(self, mean: float, where: str) -> str:
        times = f"{1.0 + mean:.4g} times their means on average"
        return f"the elements of {self._which(where)} are {times}"

    def _std_text(self, mean: float, where: str) -> str:
        std = self.statistics.std or 0.0
        found = math.sqrt(max(0.0, mean + std**2))
        return f"the standard deviation of {self._which(where)} is {found:.4g}, not {std:.4g}"

    def _zeros_text(self, zeros: int, count: int, where: str) -> str:
        found = f"{zeros} of {count} elements of {self._which(where)} are 0"
        wanted = f"{self.statistics.zeros or 0.0:.4g}"
        return f"{found}, a share of {zeros / count:.4g} in place of {wanted}"


def _telling(means: Wide, fmt: FloatLimits | None, *, by_element: bool) -> NDArray[np.bool_]:
    """Mark the elements whose means allow a test.

    A mean must be finite. There is a second condition if `by_element` is True, which means that the
    elements may have different means. This condition depends on `fmt`:

    - If `fmt` is None, the mean must not be 0.
    - If `fmt` is the output's format, the mean must be so far from 0 and from overflow in this
      format that rounding is small in comparison (see `MARGIN`).
    """
    telling: NDArray[np.bool_] = np.isfinite(means)
    if by_element and fmt is not None:
        sizes = np.abs(means)
        telling &= (sizes < fmt.max / MARGIN) & (sizes > fmt.smallest_normal * MARGIN)
    elif by_element:
        telling &= means != 0.0
    return telling


def _is_centred(terms: Wide, slack: Wide | None, at_least: float) -> bool:
    """Tell whether a sum of independent terms is compatible with mean 0.

    The test uses a bound that holds for symmetric terms, whatever their number and sizes (Efron,
    "Student's t-test under symmetry conditions", 1969).

    Symbols:

    - S is the sum of the terms.
    - Q is the sum of the squares of the terms.
    - R is the sum of `slack`.

    For every number t, the bound is ``P(|S| >= t sqrt(Q)) <= 2 exp(-t^2 / 2)``. The evidence
    against mean 0 is ``t^2 / 2`` for ``t = (|S| - R) / sqrt(Q)``; there is none if ``|S| <= R``.
    """
    largest = float(np.abs(terms).max(initial=0.0))
    if not largest > 0.0:
        return True
    scaled = terms / largest
    total = abs(float(scaled.sum()))
    if slack is not None:
        total -= float((slack / largest).sum())
    squares = float(np.square(scaled).sum())
    return total <= 0.0 or total * total <= 2.0 * at_least * squares


def _has_std(excess: Wide, rounding: Wide, count: int, std: float, at_least: float) -> bool:
    """Tell whether the standard deviation of elements is compatible with `std`.

    If the sum of `excess` is not negative, `_is_centred` tests it. That test would reject a
    negative sum too often: a few squares are large, and a sample without them has a negative sum
    and a narrow bound. A negative sum is therefore tested by the empirical likelihood ratio (Owen,
    "Empirical likelihood ratio confidence intervals for a single functional", 1988). Symbols:

    - x is a value of `excess`, plus its largest rounding error.
    - M is the largest value of `excess`, or a larger number if there are few elements. Values
      larger than those that occurred are then assumed to be possible (see `LARGE_SQUARES`).
    - y is a number between 0 and 1. The n values in `TRIED` are tried.
    - E is the sum of ``log(1 - y x / M)`` over the elements. Its maximum over all y is minus the
      logarithm of the ratio.

    The standard deviation is incompatible if, for any y, E exceeds `at_least` plus ``log(n)``.
    """
    if float(excess.sum()) >= 0.0:
        return _is_centred(excess, rounding, at_least)
    largest = max(float(excess.max(initial=0.0)), std**2 * LARGE_SQUARES / count)
    reach = at_least + math.log(len(TRIED))
    return all(float(np.log1p((-excess - rounding) * y / largest).sum()) <= reach for y in TRIED)
