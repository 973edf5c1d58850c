"""Judge elements exactly: find those that fail, by how much, and those without a verdict."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import FloatLimits
from gpuemu_flow.numerics.ulp import Float64Array

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
        """Mark the elements at `where` on which a failure proves nothing; None if there are none.

        A marked element passes if its error is within its tolerance. Otherwise it has no verdict.
        """
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
    """Judge elements in float64 by ``|a - e| <= tolerance``, and NaN and Inf by `rules`.

    A finite value never matches NaN or Inf. Inf matches only Inf of its sign, and NaN only NaN. A
    NaN error counts as a failure. An element in the bound's `no_verdict` still passes if its error
    is within its tolerance, and fails where a strict policy forbids its value.
    """
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
    clipped: Float64Array = np.where(np.isinf(values), values, np.clip(values, -largest, largest))
    return clipped


def _matches(
    actual: Float64Array, expected: Float64Array, tolerance: Float64Array, rules: Rules
) -> BoolArray:
    """Mark pairs that count as equal although one or both values are not finite.

    These are NaN and NaN, Inf and the same Inf, and an overflow where the format's largest value
    would be within the tolerance.
    """
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
    """Mark NaN and Inf that a strict policy forbids.

    They fail whatever value is expected, and even if the element has no verdict.
    """
    forbidden = np.zeros(actual.shape, bool)
    if rules.nan == "strict":
        forbidden |= np.isnan(actual)
    if rules.inf == "strict":
        forbidden |= np.isinf(actual)
    return forbidden


def _ignored(actual: Float64Array, expected: Float64Array, rules: Rules) -> BoolArray | None:
    """Mark pairs that an ``ignore`` policy exempts from judgement; None if there are no such pairs.

    The expected value decides. A NaN or Inf that only the op returns is a failure, unless the
    case's inputs hold NaN or Inf.
    """
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
