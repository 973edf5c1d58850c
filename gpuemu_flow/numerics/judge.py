"""Judge elements exactly: find those that fail, by how much, and those without a verdict."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import Float64Array, FloatLimits, spacing

Array = NDArray[Any]
BoolArray = NDArray[np.bool_]
Where = slice | NDArray[np.intp]
"""Flat positions, in C order, of the elements that are judged."""


class Bound(Protocol):
    """The allowed error of one output, element by element."""

    @property
    def proof(self) -> tuple[float, float] | None: ...

    def tolerance(self, expected: Float64Array, where: Where) -> Float64Array:
        """Return the allowed ``|a - e|`` of the elements at `where`, from their expected values."""
        ...

    def no_verdict(self, where: Where) -> BoolArray | None:
        """Mark the elements at `where` on which a failure proves nothing; None if there are none. A
        marked element passes if its error is within its tolerance. Otherwise it has no verdict."""
        ...


class AffineBound(Struct, frozen=True):
    """``atol + rtol * |expected|``, the documented formula."""

    atol: float
    rtol: float

    @property
    def proof(self) -> tuple[float, float]:
        return self.atol, self.rtol

    def tolerance(self, expected: Float64Array, where: Where) -> Float64Array:
        result: Float64Array = np.abs(expected) * self.rtol + self.atol
        return result

    def no_verdict(self, where: Where) -> None:
        return None


class ExcusedBound(Struct, frozen=True):
    """A bound under which selected elements get no verdict if they exceed their tolerance."""

    bound: Bound  # Gives the tolerances, and may leave further elements without verdict
    excused: BoolArray  # true for the selected elements

    @property
    def proof(self) -> tuple[float, float] | None:
        return self.bound.proof

    def tolerance(self, expected: Float64Array, where: Where) -> Float64Array:
        return self.bound.tolerance(expected, where)

    def no_verdict(self, where: Where) -> BoolArray:
        others = self.bound.no_verdict(where)
        excused: BoolArray = self.excused[where]
        return excused if others is None else excused | others


class Rules(Struct, frozen=True):
    """The meaning of NaN and Inf in one output of one case."""

    # ``match``, ``strict`` or ``ignore``. If the case's inputs hold NaN or Inf, ``strict`` has
    # already been replaced by ``match``.
    nan: str = "match"
    inf: str = "match"
    special_inputs: bool = False  # true if the case's inputs hold NaN or Inf
    # Format of the output if the expected values have a wider range than this format, else None.
    # Finite expected values are clipped to the format's largest value, and an overflow in the
    # output counts as this value. Thus an overflow that every correct op has is no failure.
    clip: FloatLimits | None = None


class Judgement(Struct, frozen=True):
    """The verdict on some elements, one entry per element."""

    # ``|actual - expected|``; 0 where NaN or Inf match, infinite where they do not
    error: Float64Array
    # ``error / tolerance``; 0 where NaN or Inf match, infinite where they do not
    share: Float64Array
    failed: BoolArray  # False also where the element has no verdict
    # True where the actual and the expected value are finite; None if all are
    finite: BoolArray | None = None
    unjudged: BoolArray | None = None  # true where the element has no verdict; None if all have one


def judge(
    actual: Float64Array, expected: Float64Array, bound: Bound, where: Where, rules: Rules
) -> Judgement:
    """Judge elements in float64 by ``|a - e| <= tolerance``, and NaN and Inf by `rules`. A finite
    value never matches NaN or Inf. Inf matches only Inf of its sign, and NaN only NaN. A NaN error
    counts as a failure. An element in the bound's `no_verdict` still passes if its error is within
    its tolerance, and fails where a strict policy forbids its value."""
    finite = np.isfinite(actual) & np.isfinite(expected)
    all_finite = bool(finite.all())
    with np.errstate(all="ignore"):
        if rules.clip is not None:
            expected = _clip_finite(expected, rules.clip.max)
        tolerance = bound.tolerance(expected, where)
        error: Float64Array = np.abs(actual - expected)
        failed: BoolArray = ~(error <= tolerance)
        share: Float64Array = error / tolerance
    share[np.isnan(share)] = 0.0  # 0/0, or both out of float64's range: allowed
    unjudged = bound.no_verdict(where)
    if not all_finite:
        at = np.flatnonzero(~finite)
        special_a, special_e = actual[at], expected[at]
        matches = _matches(special_a, special_e, tolerance[at], rules)
        error[at] = share[at] = np.where(matches, 0.0, np.inf)
        forbidden = _forbidden(special_a, rules)
        failed[at] = ~matches | forbidden
        if unjudged is not None and forbidden.any():
            # The policy decides these, and not the tolerance, of which they use no share.
            share[at[forbidden & unjudged[at]]] = 0.0
            unjudged = unjudged.copy()
            unjudged[at[forbidden]] = False
        ignored = _ignored(special_a, special_e, rules)
        if ignored is not None:
            unjudged = np.zeros(failed.shape, bool) if unjudged is None else unjudged.copy()
            unjudged[at[ignored]] = True
    return _without_unjudged(error, share, failed, None if all_finite else finite, unjudged)


def _without_unjudged(
    error: Float64Array,
    share: Float64Array,
    failed: BoolArray,
    finite: BoolArray | None,
    unjudged: BoolArray | None,
) -> Judgement:
    if unjudged is not None:
        # Only elements that would fail lack a verdict. Others pass, but their tolerance is only a
        # stand-in, so that no share of it is reported.
        share = np.where(unjudged, 0.0, share)
        unjudged = unjudged & failed
        failed = failed & ~unjudged
        if not unjudged.any():
            unjudged = None
    return Judgement(error, share, failed, finite, unjudged)


def _clip_finite(values: Float64Array, largest: float) -> Float64Array:
    """Clip finite values to ±largest; NaN and Inf stay as they are."""
    if -largest <= values.min(initial=0.0) and values.max(initial=0.0) <= largest:  # and no NaN
        return values
    clipped: Float64Array = np.where(np.isinf(values), values, np.clip(values, -largest, largest))
    return clipped


def _matches(
    actual: Float64Array, expected: Float64Array, tolerance: Float64Array, rules: Rules
) -> BoolArray:
    """Mark pairs that count as equal although one or both values are not finite. These are NaN and
    NaN, Inf and the same Inf, and an overflow where the format's largest value would be within the
    tolerance."""
    nan_a, nan_e = np.isnan(actual), np.isnan(expected)
    matches: BoolArray = (nan_a & nan_e) | (actual == expected)
    fmt = rules.clip
    if fmt is not None:
        overflowed = np.isinf(actual) if fmt.has_inf else np.isinf(actual) | nan_a
        # Overflow to NaN has no sign of its own: the expected value's stands for it.
        stand_in = np.copysign(fmt.max, np.where(nan_a, expected, actual))
        with np.errstate(all="ignore"):
            near = np.abs(stand_in - expected) <= tolerance
        matches |= overflowed & np.isfinite(expected) & near
        if not fmt.has_inf:
            saturated = actual == np.copysign(fmt.max, expected)
            matches |= np.isinf(expected) & (nan_a | saturated)
    return matches


def _forbidden(actual: Float64Array, rules: Rules) -> BoolArray:
    """Mark NaN and Inf that a strict policy forbids. They fail whatever value is expected, and even
    if the element has no verdict."""
    forbidden = np.zeros(actual.shape, bool)
    if rules.nan == "strict":
        forbidden |= np.isnan(actual)
    if rules.inf == "strict":
        forbidden |= np.isinf(actual)
    return forbidden


def _ignored(actual: Float64Array, expected: Float64Array, rules: Rules) -> BoolArray | None:
    """Mark pairs that an ``ignore`` policy exempts from judgement; None if there are no such pairs.
    The expected value decides. A NaN or Inf that only the op returns is a failure, unless the
    case's inputs hold NaN or Inf."""
    nan_a, nan_e = np.isnan(actual), np.isnan(expected)
    ignored = np.zeros(actual.shape, bool)
    if rules.nan == "ignore":
        ignored |= nan_e | (nan_a & rules.special_inputs)
    if rules.inf == "ignore":
        infinite = np.isinf(expected) | (np.isinf(actual) & rules.special_inputs)
        ignored |= infinite & ~nan_a & ~nan_e
    return ignored if ignored.any() else None


def judge_integers(actual: Array, expected: Array, bound: Bound, where: Where) -> Judgement:
    """Judge integers of one dtype; differences are exact, up to the full unsigned 64-bit range."""
    wide = np.int64 if actual.dtype.kind == "i" else np.uint64
    # Modulo 2**64 the larger minus the smaller is the exact distance, whatever the signs.
    bits_a, bits_e = actual.astype(wide).view(np.uint64), expected.astype(wide).view(np.uint64)
    distance = np.where(actual > expected, bits_a - bits_e, bits_e - bits_a)
    error = distance.astype(np.float64)
    with np.errstate(all="ignore"):
        tolerance = bound.tolerance(expected.astype(np.float64), where)
        failed: BoolArray = ~(error <= tolerance)
        share = error / tolerance
    share[distance == 0] = 0.0
    return _without_unjudged(error, share, failed, None, bound.no_verdict(where))


FACTOR = 8.0
"""Multiple of the measured error that a correct op may show."""

ENOUGH = 256
"""Fewest elements whose mean squared error shows where the errors come from."""

LARGER = 1.5
"""Factor by which an op's mean squared error may exceed the largest one of the draws. Sums of four
tiles in half precision reach a factor of 3, other orders of rounding the same operands 1.2."""

FAR = 64.0
"""Largest contribution of one element to the mean of squared errors, in units of its variance."""

FLOOR_SHARE = 0.125
"""Share of the two ulp of the quick bound that does not grow with the value."""


def growth(longest_dim: int) -> float:
    """Return ``1 + sqrt(n) / 8``, a model of how rounding errors grow along a dim of size n."""
    return 1.0 + math.sqrt(longest_dim) / 8.0


def unit(fmt: FloatLimits) -> float:
    """Return the relative size of one rounding: in float64 for float64 outputs, else in float32.
    Ops with narrower outputs compute in float32 and round once."""
    return fmt.eps if fmt.name == "float64" else 2.0**-23


def least(fmt: FloatLimits, longest_dim: int | None = None) -> float:
    """Return the least absolute tolerance, which permits ops to flush subnormals to zero. The
    tolerance is the smallest normal number of float64 for float64 outputs, and of float32 for other
    outputs. For ops that are not exact, pass `longest_dim`, the largest size of a dim of the
    inputs. The tolerance is then multiplied by ``8 g``, where g is ``growth(longest_dim)``. This
    factor is needed because intermediate products of such ops may underflow. The op may then
    multiply them by up to the square root of a dim's size, for example in a norm."""
    smallest = 2.0**-1022 if fmt.name == "float64" else 2.0**-126
    return smallest if longest_dim is None else FACTOR * growth(longest_dim) * smallest


class QuickBound(Struct, frozen=True):
    """A bound of each element's error that needs no evaluation of the reference. It is never above
    the envelope, which is the bound that evaluations of the reference give. Let r be the expected
    value of an element. The bound is then ``relative |r| + 2 ulp(r) + floor``."""

    # 0 for exact ops. For other ops ``8 g u``, where g is the result of `growth` for the longest
    # dim, and u is the result of `unit` for the format.
    relative: float
    fmt: FloatLimits  # Format of the output
    floor: float  # Absolute part of the bound; see `least`

    @property
    def proof(self) -> tuple[float, float]:
        # ulp(r) is at least the smallest subnormal and above |r| * eps / 2, hence at least any
        # weighted mean of the two.
        ulps = 2.0 * FLOOR_SHARE * self.fmt.smallest_subnormal
        return ulps + self.floor, self.relative + (1.0 - FLOOR_SHARE) * self.fmt.eps

    def tolerance(self, expected: Float64Array, where: Where) -> Float64Array:
        with np.errstate(all="ignore"):
            result: Float64Array = self.relative * np.abs(expected)
            result += 2.0 * spacing(expected, self.fmt) + self.floor
        return result

    def no_verdict(self, where: Where) -> None:
        return None


class Excuse(Struct, frozen=True):
    """Measurements that decide whether the rounding of an op's operands excuses its errors. The
    errors are excused if, taken together, they are not much larger than the errors of evaluations
    with rounded operands; see `holds`."""

    # For each element, the mean squared error caused by rounding the operands; 0 for elements that
    # are not judged
    variance: Float64Array
    largest: float  # the largest `size` of the errors of any evaluation with rounded operands
    without: ElementBound  # the bound to use if the errors are not excused

    def size(self, error: Float64Array) -> float:
        """Return the mean of the squared errors, each divided by its variance and clipped. Clipping
        limits the influence of a single large error, which fails its element's own bound anyway."""
        known = (self.variance > 0.0) & np.isfinite(error)
        if not known.any():
            return 0.0
        shares = error[known] ** 2 / self.variance[known]
        return float(np.minimum(shares, FAR).mean())

    def holds(self, actual: Float64Array, expected: Float64Array) -> bool:
        """Tell whether the errors as a whole may come from rounded operands. This is so if the
        `size` of the errors is at most `LARGER` times the attribute `largest`, which comes from
        evaluations with rounded operands. If fewer than `ENOUGH` elements are judged, the result is
        True, because so few elements prove nothing."""
        if np.count_nonzero(self.variance) < ENOUGH:
            return True
        with np.errstate(all="ignore"):
            error = np.abs(actual - expected)
        return self.size(error) <= LARGER * self.largest


class ElementBound(Struct, frozen=True):
    """The envelope of one output, one entry per element in C order."""

    # Largest error that each element may have. None if the output must be exact, as integers and
    # booleans must.
    allowed: Float64Array | None
    unstable: BoolArray | None  # elements on which a failure would prove nothing
    excuse: Excuse | None = None  # Set if rounded operands have made `allowed` wider

    @property
    def proof(self) -> None:
        return None

    def tolerance(self, expected: Float64Array, where: Where) -> Float64Array:
        if self.allowed is None:
            return np.zeros(expected.shape)
        return self.allowed[where]

    def no_verdict(self, where: Where) -> BoolArray | None:
        return None if self.unstable is None else self.unstable[where]


def make_quick_bound(fmt: FloatLimits, longest_dim: int, *, exact_op: bool) -> QuickBound:
    """Return the quick bound of an output in the format `fmt`. `longest_dim` is the largest size of
    a dim of the inputs. `exact_op` is True for an op that does not round, such as a copy or a
    maximum."""
    if exact_op:
        return QuickBound(0.0, fmt, least(fmt))
    relative = FACTOR * growth(longest_dim) * unit(fmt)
    return QuickBound(relative, fmt, least(fmt, longest_dim))
