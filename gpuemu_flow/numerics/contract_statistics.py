"""Random outputs: tests of the distribution that their elements are drawn from.

Each case is tested by itself, on all of its elements. The rate of false alarms that the contract
states is divided among the tests. Each test uses a bound that holds for few elements as well as for
many: no test assumes that a sum is normally distributed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.contract import Statistics
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, FloatLimits, dtype_name, to_float64
from gpuemu_flow.quick_dataclass import dataclass

Array = NDArray[Any]
Wide = NDArray[np.float64]

MARGIN = 16.0
"""Only means between ``MARGIN`` times the smallest normal and 1/``MARGIN`` of the largest value are
tested: beyond them, a correct op overflows or rounds by as much as the mean."""


@dataclass(frozen=True)
class Tested:
    """The result of the tests of one output.

    Attributes
    ----------
    count : int
        Elements that were tested; 0 where there were too few.
    failures : tuple of str
    note : str
        The reason why nothing was tested; empty where something was.
    """

    count: int
    failures: tuple[str, ...] = ()
    note: str = ""


def tested(name: str, values: Array, means: Array, statistics: Statistics) -> Tested:
    """Test the elements of one output against their distribution, and return the result.

    Parameters
    ----------
    name : str
        Name of the output, for messages.
    values : ndarray
        The op's output.
    means : ndarray
        Mean of each element, of the same shape.
    statistics : Statistics
        The distribution that the configuration declares.
    """
    fmt = FLOAT_LIMITS.get(dtype_name(values.dtype) or "")
    drawn, wanted = to_float64(values), to_float64(means)
    by_element = not isinstance(statistics.mean, float)
    telling = _telling(wanted, fmt, by_element=by_element)
    count = int(np.count_nonzero(telling))
    if count < statistics.samples:
        needed = f"statistics of {name!r} need {statistics.samples} elements"
        return Tested(0, note=f"{needed}; this case has {count} whose mean says anything")
    broken = int(np.count_nonzero(telling & ~np.isfinite(drawn)))
    if broken:
        return Tested(count, (f"{broken} of {count} elements of {name!r} are NaN or infinite",))
    lags = _lags(values.size)
    tests = 1 + 2 * by_element + (statistics.std is not None) + (statistics.zeros is not None)
    tests += values.ndim + len(lags)
    at_least = math.log(2.0 * tests / statistics.false_alarms)  # -log of each test's share
    failures = []
    with np.errstate(all="ignore"):
        residual = np.where(telling, drawn - wanted, 0.0)
        eps = 0.0 if fmt is None else fmt.eps
        rounding = eps * np.abs(np.where(telling, drawn, 0.0))
        if not residual.any():
            failures.append(f"nothing of {name!r} is random: every element is its mean")
        elif not _is_centred(residual, rounding, at_least):
            found = residual.sum() / count
            failures.append(
                f"the elements of {name!r} lie off their means, by {found:.4g} on average"
            )
        if by_element:
            size = np.where(telling, wanted, 1.0)
            if not _is_centred(residual / size, rounding / np.abs(size), at_least):
                share = 1.0 + float((residual / size).sum()) / count
                failures.append(
                    f"the elements of {name!r} are {share:.4g} times their means on average"
                )
            residual = residual / size
            parts = (residual[telling], (rounding / np.abs(size))[telling], np.abs(wanted[telling]))
            slope = _slope(*parts, at_least)
            if not failures and slope is not None:
                failures.append(
                    f"the elements of {name!r} do not follow their means: the slope over these is"
                    f" {slope:.4g}, not 1"
                )
        if statistics.std is not None:
            excess = np.where(telling, (drawn - wanted) ** 2 - statistics.std**2, 0.0)
            slack = 4.0 * eps * np.where(telling, (drawn - wanted) ** 2, 0.0)
            if not _is_centred(excess, slack, at_least):
                found = math.sqrt(max(0.0, float(excess.sum()) / count + statistics.std**2))
                text = (
                    f"the standard deviation of {name!r} is {found:.4g}, not {statistics.std:.4g}"
                )
                failures.append(text)
        if statistics.zeros is not None:
            zeros = int(np.count_nonzero(telling & (drawn == 0.0)))
            if count * _divergence(zeros / count, statistics.zeros) > at_least:
                text = (
                    f"{zeros} of {count} elements of {name!r} are 0, a share of {zeros / count:.4g}"
                )
                failures.append(f"{text} in place of {statistics.zeros:.4g}")
        failures += [
            f"neighbours along axis {axis} of {name!r} are not drawn independently"
            for axis in range(values.ndim)
            if not _are_independent(*_neighbours(residual, axis), at_least)
        ]
        lag = next((n for n in lags if _is_repeated(*_pairs(residual, n), at_least)), None)
        if lag is not None and not failures:
            failures.append(
                f"elements of {name!r} that lie {lag} apart are not drawn independently"
            )
    return Tested(count, tuple(failures))


def _telling(means: Wide, fmt: FloatLimits | None, *, by_element: bool) -> NDArray[np.bool_]:
    """Mark the elements whose mean is measurable despite rounding and overflow."""
    telling: NDArray[np.bool_] = np.isfinite(means)
    if by_element and fmt is not None:
        sizes = np.abs(means)
        telling &= (sizes < fmt.max / MARGIN) & (sizes > fmt.smallest_normal * MARGIN)
    elif by_element:
        telling &= means != 0.0
    return telling


def _is_centred(terms: Wide, slack: Wide | None, at_least: float) -> bool:
    """Tell whether a sum of independent terms is compatible with mean 0.

    For symmetric terms ``P(|sum| >= t * sqrt(sum of squares)) <= 2 exp(-t^2 / 2)``, whatever their
    number and sizes (Efron, "Student's t-test under symmetry conditions", 1969).
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


def _slope(relative: Wide, rounding: Wide, sizes: Wide, at_least: float) -> float | None:
    """Test that elements are proportional to their means; return their slope if they are not.

    Elements that were computed for other indices are not proportional to these means. Where a mean
    is small, the relative deviation of such an element may have any size, so a small mean gets a
    small weight. The three quarters of the elements with the largest means have equal weights, so
    that the test does not depend on a few elements.

    Parameters
    ----------
    relative : ndarray
        Deviations from the means, relative to these.
    rounding : ndarray
        Largest errors of `relative` by rounding.
    sizes : ndarray
        Magnitudes of the means.
    at_least : float
        As for `_is_centred`.

    Returns
    -------
    float or None
        The slope of the elements over their means; None if 1 is compatible with them.
    """
    weights = np.minimum(1.0, sizes / np.quantile(sizes, 0.25)) ** 2
    if _is_centred(relative * weights, rounding * weights, at_least):
        return None
    return 1.0 + float((relative * weights).sum() / weights.sum())


def _neighbours(residual: Wide, axis: int) -> tuple[Wide, Wide]:
    """Return pairs of neighbours along an axis; each element is in at most one pair."""
    scaled = residual / (float(np.abs(residual).max(initial=0.0)) or 1.0)
    moved = np.moveaxis(scaled, axis, 0)
    return moved[: len(moved) - 1 : 2], moved[1::2]


def _are_independent(first: Wide, second: Wide, at_least: float) -> bool:
    """Tell whether the sum of products of independent terms of mean 0 is compatible with mean 0.

    The products of skewed terms, such as those of a mask that is nearly always 0, are skewed: a few
    are large, and many small ones are negative. If none of the large ones occurred, the sum would
    be negative and its squares far too small. The product of the terms' own squares, which does not
    depend on who is paired with whom, is then the better variance, and the bound for symmetric
    terms holds for the short tail of skewed ones, too.
    """
    products = first * second
    total, squares = float(products.sum()), float(np.square(products).sum())
    if total < 0.0:
        apart = float(np.square(first).sum()) * float(np.square(second).sum()) / products.size
        squares = max(squares, apart)
    return total * total <= 2.0 * at_least * squares


def _lags(size: int) -> list[int]:
    """Return 2^k and 3 · 2^k up to half of a size: lengths after which tiles repeat their draws."""
    powers = [2**k for k in range(1, max(size, 2).bit_length())]
    return sorted(lag for power in powers for lag in (power, 3 * power // 2) if 2 * lag <= size)


def _is_repeated(first: Wide, second: Wide, at_least: float) -> bool:
    """Tell whether products are positive more often than those of independent terms.

    Products of repeated draws are positive. A negative sum of products proves nothing. If few terms
    are large, for example in a mask that is nearly always 0, the large terms may not be paired with
    each other.
    """
    return float((first * second).sum()) > 0.0 and not _are_independent(first, second, at_least)


def _pairs(residual: Wide, lag: int) -> tuple[Wide, Wide]:
    """Return pairs of elements `lag` places apart in memory; each element is in at most one."""
    whole = residual.size // (2 * lag) * 2 * lag
    scaled = residual.reshape(-1)[:whole] / (float(np.abs(residual).max(initial=0.0)) or 1.0)
    halves = scaled.reshape(-1, 2, lag)
    return halves[:, 0], halves[:, 1]


def _divergence(found: float, wanted: float) -> float:
    """Return the relative entropy of two shares: Chernoff's exponent of a binomial's tail."""
    parts = 0.0
    for one, other in ((found, wanted), (1.0 - found, 1.0 - wanted)):
        if one > 0.0:
            parts += math.inf if other <= 0.0 else one * math.log(one / other)
    return parts
