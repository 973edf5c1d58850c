"""Random outputs: tests that elements are drawn independently of each other."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.float64]

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
    """Return the first and the second elements of pairs of neighbours along an axis.

    Each element is in at most one pair.
    """
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
    `are_independent`.
    """
    repeated = float((first * second).sum()) > 0.0
    return repeated and not are_independent(first, second, at_least, variance)


def pairs(terms: Wide, lag: int) -> tuple[Wide, Wide]:
    """Return the first and the second elements of pairs that are `lag` places apart in memory.

    Each element is in at most one pair.
    """
    whole = terms.size // (2 * lag) * 2 * lag
    halves = terms.reshape(-1)[:whole].reshape(-1, 2, lag)
    return halves[:, 0], halves[:, 1]


def repeated_shift(terms: Wide, variance: float, rate: float) -> int | None:
    """Return a distance in memory after which draws repeat; None if they do not repeat.

    The test finds repeated rows and tiles of any length, and rows that are shifted copies of each
    other. It examines the first `MOST_SHIFTED` terms. Fourier transforms test all distances up to
    half the number of examined terms at once.

    The bound of `are_independent` needs products with independent signs. For a fixed distance, each
    term is in two products. Even so, if the signs of the terms are independent of each other, the
    signs of the products are independent of each other, too.
    """
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
    sums are right for distances up to d.
    """
    spectrum = np.fft.rfft(terms, length)
    found: Wide = np.fft.irfft(spectrum * spectrum.conj(), length)
    return found


def mirrored(terms: Wide) -> tuple[Wide, Wide] | None:
    """Return the pairs of elements at [..., i, j] and [..., j, i], as two arrays.

    The result is None if the last two axes differ in size or have a single index. A generator whose
    counter is a product or a sum of both indices gives the two elements of a pair the same draw.
    """
    if terms.ndim < 2 or terms.shape[-1] != terms.shape[-2] or terms.shape[-1] < 2:
        return None
    rows, columns = np.triu_indices(terms.shape[-1], 1)
    return terms[..., rows, columns], terms[..., columns, rows]
