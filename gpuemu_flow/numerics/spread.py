"""Measurements of one output's tolerance, element by element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import Float64Array, FloatLimits, spacing, to_float64
from gpuemu_flow.numerics.judge import (
    FACTOR,
    BoolArray,
    ElementBound,
    Excuse,
    growth,
    least,
    make_quick_bound,
)

HEADROOM = 1024.0
"""Factor on the inputs that float32 must withstand without overflow."""

STEEPEST = HEADROOM**8
"""Growth under `HEADROOM` above which a result counts as exponential and may overflow."""

SANE_SHARE = 0.5
"""Largest tolerance, as a share of the scale of the value, that permits a verdict: with twice as
much, zeros would pass."""

NOISE_SHARE = 0.25
"""Largest change under noise, as a share of the largest value, that permits a verdict."""

ROUNDED_FACTOR = 2.0
"""Factor by which the errors of a right op may exceed the changes by rounding to a narrower type.
It does not grow with the length of sums: each operand is rounded once, and the draws round as often
as the op."""

SMOOTH_SHARE = 2.0**-10
"""Largest change by perturbed roundings of constants, as a share of the scale of the value, that
counts as it is. A larger change counts only if it grows with the perturbation; otherwise, another
index was computed, as of a nearest neighbour."""

GROWS = 3.0
"""Factor by which the largest error of roundings grows at least if perturbations grow eightfold."""

LOOSE_SHARE = 2.0**-6
"""Tolerance, as a share of the scale of the value, above which perturbed inputs have crossed a step
of the reference. It is used for elements that depend on no rounding."""

FEW_ROUNDINGS = 64.0
"""Largest change by perturbed roundings of constants, in roundings of the largest input, that may
be a rounding error although it is large beside the value itself."""

ACCOUNTED = 16.0
"""Factor by which S may exceed what the measured error supports; see `Spread._accounted`."""


class Spread:
    """Combines the evaluations of one output into its tolerance."""

    def __init__(self, expected: NDArray[Any], fmt: FloatLimits | None) -> None:
        self.shape = expected.shape
        self.fmt = fmt
        flat = expected.reshape(-1)
        self._raw = flat
        self.unstable: BoolArray = np.zeros(flat.size, bool)
        self._power_like: BoolArray | bool = True
        none, never = np.broadcast_to(0.0, flat.size), np.broadcast_to(np.False_, flat.size)
        self._beyond: BoolArray = never
        self._downstream: BoolArray = never
        if fmt is None:
            return
        self._reference = _clip(to_float64(flat), fmt)
        self.finite = np.isfinite(self._reference)
        self._error: Float64Array = none
        self._rounded: Float64Array = none
        self._cancelled: Float64Array = none
        self._constants: Float64Array = none
        self._grows: BoolArray = never
        self._untouched: BoolArray = never
        self._drawn: list[NDArray[np.float32]] = []
        self._flushed: Float64Array = none
        self._noise: Float64Array = none
        self._magnitude: Float64Array = np.abs(self._reference)
        self._magnitude[~self.finite] = 0.0
        self._largest = float(self._magnitude.max(initial=0.0))

    def add(self, values: NDArray[Any]) -> None:
        """Add an evaluation that a correct op could have given."""
        if self.fmt is None:
            return
        self._error = self._folded(self._changed(values), self._error)

    def add_cancelled(self, values: NDArray[Any]) -> None:
        """Add an evaluation in which the operands of sums were perturbed; see `cancelling`. Where
        NaN or an infinity is expected and the evaluation gives another value, there is no verdict,
        since rounding decides between the two."""
        if self.fmt is None:
            return
        changed = self._changed(values)
        # Every tolerance allows as much. Zeros that only an underflow moves have no error that they
        # could share with other zeros.
        changed[changed < least(self.fmt)] = 0.0
        self._cancelled = self._folded(changed, self._cancelled)
        self.exclude_other_kinds(values)

    def add_constants(self, values: NDArray[Any]) -> None:
        """Add an evaluation in which constants are rounded differently; see `bound`."""
        if self.fmt is not None:
            changed = self._changed(values)
            known = np.where(np.isfinite(changed), changed, 0.0)
            self._constants = np.maximum(self._constants, known)

    def changes_with_constants(self) -> bool:
        """Tell whether perturbed constants change an element by more than rounding errors would."""
        if self.fmt is None:
            return False
        sizes = np.maximum(np.abs(self._reference), self._typical())
        return bool((self.finite & (self._constants > SMOOTH_SHARE * sizes)).any())

    def compare_constants(
        self, plain: NDArray[Any], pairs: list[tuple[NDArray[Any], NDArray[Any]]]
    ) -> None:
        """Find the elements that perturbed constants change by rounding errors only. A rounding
        error grows with the perturbation. So the larger perturbations change such an element at
        least `GROWS` times as much as the small ones do, and at least by `GROWS` times the error of
        `plain`. A change does not grow if it comes from reading another index."""
        if self.fmt is None:
            return
        start = _clip(to_float64(plain), self.fmt)
        near, far = np.abs(start - self._reference), np.zeros(start.size)
        for small, large in pairs:
            near = np.maximum(near, np.abs(_clip(to_float64(small), self.fmt) - start))
            far = np.fmax(far, np.abs(_clip(to_float64(large), self.fmt) - start))
        self._grows = self.finite & (far >= GROWS * near)

    def add_rounded(self, values: NDArray[Any], *, operands: bool = False) -> None:
        """Add an evaluation that rounds values to a narrower type as it computes. If `operands` is
        True, the evaluation rounds only operands of matrix products. Its errors are then also kept
        for the test of their mean square; see `bounds.Excuse`."""
        if self.fmt is None:
            return
        changed = self._changed(values)
        self._rounded = self._folded(changed, self._rounded)
        if operands:
            self._drawn.append(changed.astype(np.float32))

    def add_flushed(self, values: NDArray[Any]) -> None:
        """Add an evaluation with flushed subnormals, which a correct op may compute, too."""
        if self.fmt is None:
            self.add_beyond(values)
            return
        self._flushed = self._folded(self._changed(values) / FACTOR, self._flushed)

    def add_beyond(self, values: NDArray[Any]) -> None:
        """Add an evaluation with overflows or underflows that a correct op may have in float32.
        Integers that differ in this evaluation get no verdict."""
        if self.fmt is None:
            self._beyond = self._beyond | (values != self._raw)
            self.unstable |= self._beyond
        else:
            self._error = self._folded(self._changed(values), self._error)

    def add_discrete(self, values: NDArray[Any]) -> None:
        """Withhold the verdict on integers that differ in `values`. In this evaluation, equal
        numbers must stay equal: a broken tie may change any integer."""
        if self.fmt is None:
            self.unstable |= values != self._raw

    def restore_exact(
        self, *, marked: list[NDArray[Any] | None], moved: list[NDArray[Any] | None]
    ) -> None:
        """Find the elements that no rounding can change: they are the same in all evaluations. If
        such an element is an integer, it is judged, even if it was `unstable` before. For floats,
        see `bound`. Any integer that differs in `moved` becomes `unstable`."""
        touched = self._beyond.copy()
        for values in (*marked, *moved):
            touched |= True if values is None else values.reshape(-1) != self._raw
        if self.fmt is not None:
            self._untouched = ~touched & self.finite
            return
        for values in moved:
            if values is not None:
                self.unstable |= values.reshape(-1) != self._raw
        self.unstable &= touched

    def add_noise(self, values: NDArray[Any]) -> None:
        """Add an evaluation on noisy inputs; elements that it changes too much get no verdict."""
        if self.fmt is None:
            return
        self._noise = np.fmax(self._noise, np.nan_to_num(self._changed(values), nan=np.inf))

    def add_magnitudes(self, at_magnitudes: list[NDArray[Any]], at_headroom: NDArray[Any]) -> None:
        """Raise S, an estimate of the sum of the magnitudes of an element's terms. The first item
        of `at_magnitudes` is the result on |x|, the magnitudes of the inputs. The others are
        results on magnitudes enlarged at random. S becomes at least the smallest item. For a sum,
        this is the first. Near a pole, another item is smaller, and the first too large.
        `at_headroom` is the result on `HEADROOM` times |x|. If it shows exponential growth, the
        result is no sum, and S stays as it is."""
        if self.fmt is None:
            return
        size = np.abs(to_float64(at_magnitudes[0]))
        for grown in at_magnitudes[1:]:
            np.minimum(size, np.abs(to_float64(grown)), out=size)
        # NaN, too, says nothing: |x| then lies outside the op's domain.
        self._power_like = np.isfinite(size) & (np.abs(to_float64(at_headroom)) <= STEEPEST * size)
        np.fmax(self._magnitude, np.where(self._power_like, size, 0.0), out=self._magnitude)

    def add_terms(self, values: NDArray[Any]) -> None:
        """Raise S to the results of an evaluation in which terms do not cancel."""
        if self.fmt is not None:
            size = np.abs(_clip(to_float64(values), self.fmt))
            np.fmax(self._magnitude, np.where(np.isfinite(size), size, 0.0), out=self._magnitude)

    def exclude_overflow(self, at_headroom: NDArray[Any]) -> None:
        """Withhold the verdict where `at_headroom` overflows, except for exponential growth.
        `at_headroom` is the result on the magnitudes of the inputs, multiplied by `HEADROOM`. For
        exponential growth, see `add_magnitudes`."""
        if self.fmt is not None:
            overflows = ~np.isfinite(to_float64(at_headroom))
            self.unstable |= self.finite & overflows & self._power_like

    def exclude_finite(self, values: NDArray[Any]) -> None:
        """Withhold the verdict where `values` are finite and the expected ones are not."""
        if self.fmt is not None:
            self.unstable |= ~self.finite & np.isfinite(to_float64(values))

    def exclude_downstream(self, overflowing: NDArray[Any], nearest: NDArray[Any]) -> None:
        """Withhold the verdict "failed" where values that overflow in a narrow type have an
        effect. Both arguments are results with intermediate values rounded to the narrow type.
        Only in `overflowing` do values beyond that type's range become infinite or NaN. A
        failure of an affected element proves nothing, since a correct op may overflow, too. A
        pass still counts."""
        equal = (overflowing == nearest) | (_is_nan(overflowing) & _is_nan(nearest))
        self._downstream = self._downstream | ~equal

    def exclude_other_kinds(self, values: NDArray[Any]) -> None:
        """Withhold the verdict where a NaN or infinity is expected and `values` differ from it."""
        if self.fmt is not None:
            found = to_float64(values)
            same = (found == self._reference) | (np.isnan(found) & np.isnan(self._reference))
            self.unstable |= ~self.finite & ~same

    def early_bound(
        self, longest_dim: int, unit_roundoff: float, *, terms: int, usual: float
    ) -> ElementBound | None:
        """Return a bound from the evaluations so far; None if these tell too little.

        It is not above the envelope of `bound`, after any further evaluations, on elements that
        have a verdict there: each element's own part counts alone, and only if it is tight.
        """
        if self.fmt is None:
            return None
        factor, smallest = FACTOR * growth(longest_dim), least(self.fmt, longest_dim)
        accounted = self._accounted(unit_roundoff, terms, self._error)
        magnitude = np.maximum(accounted, np.minimum(self._magnitude, usual))
        allowed = unit_roundoff * magnitude
        allowed += self._error
        allowed *= factor
        judged = allowed <= LOOSE_SHARE * np.maximum(magnitude, smallest)
        judged &= self.finite & ~self.unstable
        judged &= self._noise <= NOISE_SHARE * self._largest
        if not judged.all():
            quick = factor * unit_roundoff * np.abs(self._reference)
            allowed = np.where(judged, allowed, quick)
        allowed += 2.0 * spacing(self._reference, self.fmt) + smallest
        return ElementBound(allowed, None)

    def bound(
        self,
        longest_dim: int,
        unit_roundoff: float,
        *,
        terms: int,
        usual: float,
        weak: bool,
        safety: float,
        step: float = 0.0,
        by_norm: bool = False,
    ) -> ElementBound:
        """Return the envelope from all evaluations that were added so far.

        If `by_norm`, the largest error and the largest S of any element are those of each. If every
        step may be rounded, `step` is half of such a rounding, to which R is raised for all terms.

        S is the estimated sum of the magnitudes of an element's terms; see `add_magnitudes`.

        Perturbed constants make the tolerance wider only for the elements that they change:

        - A change that is small beside the element's scale counts in full.
        - A larger change that grows with the perturbation counts without the factor for long dims.
        - Any other change is taken for the value at another index, and ignored. If it is at most a
          few roundings of the largest input, it may be a rounding error: the element then gets no
          verdict. An example is an interpolation that gives a very large input the weight 0.

        An element that no rounding can change (see `restore_exact`) may have a loose measured
        bound, because the inputs lie exactly on a step of the reference, and perturbed inputs do
        not. It then gets the quick bound.
        """
        if self.fmt is None:
            return ElementBound(None, self._without_verdict())
        factor = FACTOR * growth(longest_dim)
        usable = self.finite & ~self.unstable
        peers = _spread_over_binades(self._error, self._reference, usable)
        accounted = self._accounted(unit_roundoff, terms, np.maximum(peers, self._error))
        # Below the smallest normal numbers it is `least` that decides.
        magnitude = np.maximum(accounted, np.minimum(self._magnitude, usual))
        if by_norm:
            magnitude = _of_all(np.minimum(self._magnitude, self.fmt.max), self.finite)
        if not self._reference.any():  # terms that cancel exactly, which an op may round
            magnitude = np.maximum(magnitude, usual)
        scale = np.maximum(magnitude, max(self._typical(), least(self.fmt, longest_dim)))
        rounded = np.where(self._power_like, np.maximum(self._rounded, step * magnitude), 0.0)
        rounded = np.maximum(rounded, self._rounded)
        largest = np.maximum(self._error, self._cancelled)
        if by_norm:
            usable = self.finite & ~self.unstable
            largest, rounded = _of_all(largest, usable), _of_all(rounded, usable)
        own = factor * (safety * largest + unit_roundoff * magnitude)
        limit = SMOOTH_SHARE * scale
        smooth = (self._constants <= limit) | self._grows
        alone = FACTOR * self._constants
        constants = np.maximum(factor * np.minimum(self._constants, limit), alone)
        constants = safety * np.where(smooth, constants, 0.0)
        self.unstable |= self.finite & smooth & (safety * alone > SANE_SHARE * scale)
        few = self._constants <= FEW_ROUNDINGS * unit_roundoff * usual
        self.unstable |= self.finite & ~smooth & few
        measured = own + ROUNDED_FACTOR * safety * rounded
        if self._largest > 0.0:
            # Without this test, an output of zeros would have no element with a verdict.
            sane = (measured <= SANE_SHARE * scale) & (self._noise <= NOISE_SHARE * self._largest)
            self.unstable |= self.finite & ~sane & ~self._untouched
        stepping = self._untouched & (measured > LOOSE_SHARE * scale)
        judged = self.finite & ~self.unstable & ~stepping
        error = _of_all(largest, judged) if by_norm else self._spread_error(judged)
        if weak:
            magnitude = np.maximum(magnitude, min(usual, self._largest))
        spread = factor * (safety * error + unit_roundoff * magnitude)
        plain = self._finish(longest_dim, spread, own + constants, scale, judged)
        if not rounded.any():
            return plain
        rounded = _spread_over_binades(rounded, self._reference, judged)
        spread = spread + ROUNDED_FACTOR * safety * rounded
        wider = self._finish(longest_dim, spread, measured + constants, scale, judged)
        if not self._drawn:
            return wider
        return replace(wider, excuse=self._excuse(error, judged & ~self._downstream, plain))

    def _spread_error(self, judged: BoolArray) -> Float64Array:
        """Return each element's largest error, raised to the largest error in its binade. An error
        from `add_cancelled` is shared only with elements that have such errors, too. Zeros that no
        perturbation changes, such as masked elements, must not get a wider tolerance."""
        error = _spread_over_binades(self._error, self._reference, judged)
        some = judged & (self._cancelled > 0.0)
        if not some.any():
            return error
        left = _spread_over_binades(self._cancelled, self._reference, some)
        return np.where(some, np.maximum(error, left), error)

    def _finish(
        self,
        longest_dim: int,
        spread: Float64Array,
        own: Float64Array,
        scale: Float64Array,
        judged: BoolArray,
    ) -> ElementBound:
        """Make the bound of each element from its `own` error or from its binade's, `spread`."""
        assert self.fmt is not None  # noqa: S101 - asked of floats only
        allowed = spread
        if self._largest > 0.0:
            # The errors of its peers must not take the verdict from an element that is stable
            # itself.
            allowed = np.maximum(own, np.minimum(spread, SANE_SHARE * scale))
        allowed = allowed + FACTOR * growth(longest_dim) * self._flushed
        allowed += 2.0 * spacing(self._reference, self.fmt) + least(self.fmt, longest_dim)
        quick = make_quick_bound(self.fmt, longest_dim, exact_op=False)
        loose = self._untouched & (allowed > LOOSE_SHARE * scale)
        judged = judged & ~(loose & (self._rounded == 0.0) & (self._flushed == 0.0))
        allowed = np.where(judged, allowed, quick.tolerance(self._reference, slice(None)))
        return ElementBound(allowed, self._without_verdict())

    def _without_verdict(self) -> BoolArray | None:
        excluded = self.unstable | self._downstream
        return excluded if excluded.any() else None

    def _excuse(self, error: Float64Array, judged: BoolArray, without: ElementBound) -> Excuse:
        """Return the condition under which the rounding of operands excuses an op's errors. The
        squared error of each element is divided by the element's variance; see `Excuse.size`. The
        variance is the mean squared error of evaluations with rounded operands, over the element's
        binade, plus the variance of rounding the output, plus the square of `error` (the element's
        largest error from other causes). Elements outside of `judged` do not count. If the errors
        are not excused, the bound `without` is used."""
        assert self.fmt is not None  # noqa: S101 - asked of floats only
        squares = np.zeros(error.size)
        for drawn in self._drawn:
            squares += np.where(np.isfinite(drawn), drawn, 0.0).astype(np.float64) ** 2
        variance = _mean_over_binades(squares / len(self._drawn), self._reference, judged)
        rounding = spacing(self._reference, self.fmt) ** 2 / 12.0
        variance = np.where(judged, variance + rounding + error**2, 0.0)
        excuse = Excuse(variance, 0.0, without)
        # The drawn errors are of unrounded outputs.
        sizes = [
            excuse.size(np.sqrt(drawn.astype(np.float64) ** 2 + rounding)) for drawn in self._drawn
        ]
        return replace(excuse, largest=max(sizes))

    def _accounted(self, unit_roundoff: float, terms: int, error: Float64Array) -> Float64Array:
        """Return S, the sum of the magnitudes of an element's terms, limited by the measured error.
        The estimate of S may be far too large: ``1 / eps`` for ``1 / (relu(-x) + eps)``. Let N be
        the number of `terms`, u the `unit_roundoff`, E the measured `error` of an element, and r
        its expected value. S is limited to the larger of |r| and ``ACCOUNTED sqrt(N) E / u``. The
        reason: each term was perturbed by a rounding, so E is at least about ``u S / sqrt(N)``."""
        assert self.fmt is not None  # noqa: S101 - asked of floats only
        shown: Float64Array = ACCOUNTED * math.sqrt(terms) * error
        shown /= unit_roundoff
        np.maximum(np.abs(self._reference), shown, out=shown)
        np.minimum(shown, self.fmt.max, out=shown)
        return np.minimum(self._magnitude, shown, out=shown)

    def _typical(self) -> float:
        """Return the median magnitude of the results that are not zero."""
        sizes = np.abs(self._reference[self.finite & (self._reference != 0.0)])
        return float(np.median(sizes)) if sizes.size else 0.0

    def _changed(self, values: NDArray[Any]) -> Float64Array:
        assert self.fmt is not None  # noqa: S101 - asked of floats only
        changed = _clip(to_float64(values), self.fmt)
        changed -= self._reference
        return np.abs(changed, out=changed)

    def _folded(self, changed: Float64Array, before: Float64Array) -> Float64Array:
        """Return the largest changes of the elements; without a verdict are those that vanish."""
        known = np.isfinite(changed)
        if not known.all():
            self.unstable |= self.finite & ~known
            changed = np.where(known, changed, 0.0)
        largest: Float64Array = np.maximum(before, changed)
        return largest


def _of_all(values: Float64Array, counted: BoolArray) -> Float64Array:
    """Return the largest of the counted elements' values, for each element."""
    return np.full(values.shape, float(values[counted].max(initial=0.0)))


def _is_nan(values: NDArray[Any]) -> BoolArray:
    return np.isnan(to_float64(values))


def _clip(values: Float64Array, fmt: FloatLimits) -> Float64Array:
    clipped: Float64Array = np.clip(values, -fmt.max, fmt.max)
    infinite = np.isinf(values)
    if infinite.any():
        np.copyto(clipped, values, where=infinite)
    return clipped


def _spread_over_binades(
    error: Float64Array, reference: Float64Array, judged: BoolArray
) -> Float64Array:
    """Raise each element's error to the largest error of the `judged` elements in its binade. A few
    draws may miss the worst error of one element, but rarely the worst error of a binade."""
    groups = _binades(reference, judged)
    largest = np.zeros(int(groups.max(initial=0)) + 1)
    np.maximum.at(largest, groups, np.where(judged, error, 0.0))
    spread: Float64Array = largest[groups]
    return spread


def _mean_over_binades(
    squares: Float64Array, reference: Float64Array, judged: BoolArray
) -> Float64Array:
    """Replace each element's value by the mean over results of the same power of two."""
    groups = _binades(reference, judged)
    total = np.bincount(groups, np.where(judged, squares, 0.0))
    count = np.bincount(groups, judged)
    mean: Float64Array = (total / np.maximum(count, 1))[groups]
    return mean


def _binades(reference: Float64Array, judged: BoolArray) -> NDArray[np.intp]:
    """Return each result's binade (power of two) as a number; zeros and unjudged ones share one."""
    _, exponents = np.frexp(np.where(judged, reference, 0.0))
    exponents = np.where(judged & (reference != 0.0), exponents, -2000)
    groups: NDArray[np.intp] = (exponents - int(exponents.min(initial=0))).astype(np.intp)
    return groups
