"""Bounds of the ``auto`` tolerance: a quick bound, and the envelope with one entry per element."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from gpuemu_flow.numerics.dtypes import FloatLimits
from gpuemu_flow.numerics.judge import BoolArray, Where
from gpuemu_flow.numerics.ulp import Float64Array, spacing

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

    Ops with narrower outputs compute in float32 and round once.
    """
    return fmt.eps if fmt.name == "float64" else 2.0**-23


def least(fmt: FloatLimits, longest_dim: int | None = None) -> float:
    """Return the least absolute tolerance, which permits ops to flush subnormals to zero.

    The tolerance is the smallest normal number of float64 for float64 outputs, and of float32 for
    other outputs. For ops that are not exact, pass `longest_dim`, the largest size of a dim of the
    inputs. The tolerance is then multiplied by ``8 g``, where g is ``growth(longest_dim)``. This
    factor is needed because intermediate products of such ops may underflow. The op may then
    multiply them by up to the square root of a dim's size, for example in a norm.
    """
    smallest = 2.0**-1022 if fmt.name == "float64" else 2.0**-126
    return smallest if longest_dim is None else FACTOR * growth(longest_dim) * smallest


class QuickBound(Struct, frozen=True):
    """A bound of each element's error that needs no evaluation of the reference.

    It is never above the envelope, which is the bound that evaluations of the reference give. Let r
    be the expected value of an element. The bound is then ``relative |r| + 2 ulp(r) + floor``.
    """

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
    """Measurements that decide whether the rounding of an op's operands excuses its errors.

    The errors are excused if, taken together, they are not much larger than the errors of
    evaluations with rounded operands; see `holds`.
    """

    # For each element, the mean squared error caused by rounding the operands; 0 for elements that
    # are not judged
    variance: Float64Array
    largest: float  # the largest `size` of the errors of any evaluation with rounded operands
    without: ElementBound  # the bound to use if the errors are not excused

    def size(self, error: Float64Array) -> float:
        """Return the mean of the squared errors, each divided by its variance and clipped.

        Clipping limits the influence of a single large error, which fails its element's own bound
        anyway.
        """
        known = (self.variance > 0.0) & np.isfinite(error)
        if not known.any():
            return 0.0
        shares = error[known] ** 2 / self.variance[known]
        return float(np.minimum(shares, FAR).mean())

    def holds(self, actual: Float64Array, expected: Float64Array) -> bool:
        """Tell whether the errors as a whole may come from rounded operands.

        This is so if the `size` of the errors is at most `LARGER` times the attribute `largest`,
        which comes from evaluations with rounded operands. If fewer than `ENOUGH` elements are
        judged, the result is True, because so few elements prove nothing.
        """
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
    """Return the quick bound of an output in the format `fmt`.

    `longest_dim` is the largest size of a dim of the inputs. `exact_op` is True for an op that does
    not round, such as a copy or a maximum.
    """
    if exact_op:
        return QuickBound(0.0, fmt, least(fmt))
    relative = FACTOR * growth(longest_dim) * unit(fmt)
    return QuickBound(relative, fmt, least(fmt, longest_dim))
