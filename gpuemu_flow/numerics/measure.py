"""Measures a case's envelope: the reference evaluated on perturbed inputs and in float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.errors import FlowError
from gpuemu_flow.numerics.bounds import (
    FACTOR,
    ElementBound,
    growth,
    least,
    make_quick_bound,
    unit,
)
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, FloatLimits, dtype_name, to_float64
from gpuemu_flow.numerics.judge import BoolArray
from gpuemu_flow.numerics.noise import noisy
from gpuemu_flow.numerics.perturb import (
    Arrays,
    Perturbation,
    as_float32,
    largest_magnitude,
    widen,
)
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.ulp import Float64Array, spacing

NOISE = 64.0
"""Units of independent noise that a result must withstand to have a verdict at all."""

AGAIN = 100
"""Number of the first draw of a second look."""

SECOND_LOOK_SAFETY = 1.5
"""Factor on the measured error before a case is failed: the largest of some twenty draws still lies
below the worst case. Without it a correct attention came to 0.92 of the second look."""

HEADROOM = 1024.0
"""Factor on the inputs that float32 must withstand without overflow."""

STEEPEST = HEADROOM**8
"""Growth under `HEADROOM` above which a result is an exponential, whose overflow is its own."""

WEAK_LARGEST, WEAK_SMALLEST = 1e18, 1e-18
"""Without a shadow, magnitudes of inputs beyond which float32 intermediates may leave its range."""


class Evaluate(Protocol):
    """The reference: in float64, or its float32 shadow when `shadow` is set.

    Float inputs come as float64 arrays, for the shadow as float32; others unchanged. It must not
    modify them. A failing evaluation raises `FlowError`.
    """

    def __call__(self, inputs: Arrays, *, shadow: bool = False) -> Arrays: ...


class Evaluations:
    """An `Evaluate` with counts of its calls and failures."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self.count = 0
        self.failed = 0

    def outputs(self, inputs: Arrays, *, shadow: bool) -> Arrays | None:
        """The outputs, or None when the evaluation failed."""
        self.count += 1
        try:
            return self._evaluate(inputs, shadow=shadow)
        except FlowError:
            self.failed += 1
            return None


def measure(
    inputs: Arrays,
    expected64: Arrays,
    evaluations: Evaluations,
    *,
    formats: Mapping[str, FloatLimits | None],
    longest_dim: int,
    seed: int,
    weak: bool,
    thorough: bool = False,
) -> tuple[dict[str, ElementBound], bool]:
    """The envelope of every output, and whether it had to do without a shadow.

    Parameters
    ----------
    inputs, expected64 : mapping of str to ndarray
        The case's inputs in their own dtypes; the reference's outputs, floats as float64.
    evaluations : Evaluations
    formats : mapping of str to FloatLimits or None
        Float format of each output; None for integers and booleans.
    longest_dim, seed, weak
        As for `envelope.build_envelope`.
    thorough : bool
        More draws of every kind, for a case that is about to fail: what a handful of draws shows of
        an ill-conditioned element is a matter of luck, and each draw halves the chance to miss it.

    Notes
    -----
    With u one rounding of float32, n the longest dim and ``g = 1 + sqrt(n) / 8``::

        allowed = 8 g (E + u S + least) + 2 ulp(r)

    E is the largest change of the element over the evaluations, then the largest within the binade
    of |r|; S the larger of |r| and, unless the result grows exponentially, the reference at |x|,
    which for sums of products is the sum of the magnitudes (Higham, "Accuracy and Stability of
    Numerical Algorithms", 2002, 3.1). There is no verdict where r is finite and the float32 shadow
    is not, or is not at 1024 |x| (same exception); nor where 64 units of noise move the result by
    more than a quarter of the largest.

    Without a shadow, errors of intermediates that the result does not depend on in exact arithmetic
    (a maximum subtracted and added again) go unseen; S is then at least the largest |x| or 1, but
    not more than the largest |r|.
    """
    outputs = {name: _Output(array, formats[name]) for name, array in expected64.items()}
    floats = [fmt for fmt in formats.values() if fmt is not None]
    in_float64 = bool(floats) and all(fmt.name == "float64" for fmt in floats)
    inputs64 = widen(inputs)
    one = unit(FLOAT_LIMITS["float64" if in_float64 else "float32"])
    session = _Session(outputs, evaluations, inputs64, seed, one)
    with np.errstate(all="ignore"):
        session.plain_draws()
        if thorough:
            session.more_plain_draws()
        # Nothing of wider precision than float64 is at hand: for it the reference's own rounding
        # stands in for the shadow's.
        if in_float64:
            session.reordered_draws()
            session.exclude_float64_overflow()
        weak = in_float64 or weak or not session.shadow_draws()
        if thorough and not weak:
            session.more_shadow_draws()
        if weak and not in_float64:
            session.exclude_far_inputs()
        floor = max(1.0, largest_magnitude(inputs64)) if weak else 0.0
        safety = SECOND_LOOK_SAFETY if thorough else 1.0
        bounds = {
            name: output.bound(longest_dim, one, floor, safety) for name, output in outputs.items()
        }
    return bounds, weak and not in_float64


class _Output:
    """What is known so far of one output's envelope."""

    def __init__(self, expected: NDArray[Any], fmt: FloatLimits | None) -> None:
        self.shape = expected.shape
        self.fmt = fmt
        flat = expected.reshape(-1)
        self.raw = flat
        self.unstable: BoolArray = np.zeros(flat.size, bool)
        self.power_like: BoolArray | bool = True
        if fmt is None:
            return
        self.reference = _clip(to_float64(flat), fmt)
        self.finite = np.isfinite(self.reference)
        self.error = np.zeros(flat.size)
        self.magnitude = np.abs(self.reference)
        largest = self.magnitude[self.finite]
        self.largest = float(largest.max()) if largest.size else 0.0

    def add(self, values: NDArray[Any], *, share: float = 1.0) -> None:
        """Fold in an evaluation that a right op could have given."""
        if self.fmt is None:
            return
        changed = np.abs(_clip(to_float64(values), self.fmt) - self.reference) * share
        known = np.isfinite(changed)
        self.unstable |= self.finite & ~known
        np.maximum(self.error, np.where(known, changed, 0.0), out=self.error)

    def add_discrete(self, values: NDArray[Any]) -> None:
        """Fold in an evaluation with ties kept: integers that change with it have no verdict."""
        if self.fmt is None:
            self.unstable |= values != self.raw

    def add_magnitudes(self, at_magnitudes: NDArray[Any], at_headroom: NDArray[Any]) -> None:
        """Take S from the reference at |x|, where the result grows no faster than a power of x.

        An exponential at |x| is not the sum of the magnitudes of anything.
        """
        if self.fmt is None:
            return
        size, grown = np.abs(to_float64(at_magnitudes)), np.abs(to_float64(at_headroom))
        # NaN, too, says nothing: |x| then lies outside the op's domain.
        self.power_like = grown <= STEEPEST * size
        np.fmax(self.magnitude, np.where(self.power_like, size, 0.0), out=self.magnitude)

    def exclude_overflow(self, at_headroom: NDArray[Any]) -> None:
        """No verdict where the shadow overflows at large |x| and the result is like a power."""
        if self.fmt is not None:
            overflows = ~np.isfinite(to_float64(at_headroom))
            self.unstable |= self.finite & overflows & self.power_like

    def bound(self, longest_dim: int, one: float, floor: float, safety: float) -> ElementBound:
        """The envelope from all that was folded in; E is taken `safety` times, and S is at least
        the smaller of `floor` and the largest result."""
        unstable = self.unstable if self.unstable.any() else None
        if self.fmt is None:
            return ElementBound(None, unstable)
        judged = self.finite & ~self.unstable
        magnitude = np.minimum(self.magnitude, self.fmt.max)
        magnitude = np.maximum(magnitude, min(floor, self.largest))
        error = _spread_over_binades(self.error, self.reference, judged)
        allowed = FACTOR * growth(longest_dim) * (safety * error + one * magnitude)
        allowed += 2.0 * spacing(self.reference, self.fmt) + least(self.fmt, longest_dim)
        quick = make_quick_bound(self.fmt, longest_dim, exact_op=False)
        allowed = np.where(judged, allowed, quick.tolerance(self.reference, slice(None)))
        return ElementBound(allowed, unstable)


class _Session:
    """The evaluations of one case."""

    def __init__(
        self,
        outputs: Mapping[str, _Output],
        evaluations: Evaluations,
        inputs64: Arrays,
        seed: int,
        one: float,
    ) -> None:
        self._outputs = outputs
        self._evaluations = evaluations
        self._inputs64 = inputs64
        self._rng = SeededRng(seed)
        self._unit = one
        self._perturbation = Perturbation(inputs64, seed, one)

    def plain_draws(self) -> None:
        """The reference in float64 on inputs moved by one rounding, and its magnitudes."""
        moved = self._perturbation
        for draw in range(3):
            self._add(self._evaluate(moved.independent(draw)))
        for draw in range(2):
            self._add(self._evaluate(moved.keyed(draw)), ties_kept=True)
        self._add(self._evaluate(moved.scaled()))
        flushed = moved.flushed()
        if flushed is not None:
            self._add(self._evaluate(flushed), share=1.0 / FACTOR)
        at_magnitudes = self._evaluate(moved.magnitudes())
        at_headroom = self._evaluate(moved.magnitudes(HEADROOM))
        if at_magnitudes is not None and at_headroom is not None:
            for name, output in self._outputs.items():
                output.add_magnitudes(at_magnitudes[name], at_headroom[name])
        self._exclude_chaotic(self._evaluate(moved.independent(3, NOISE)))

    def more_plain_draws(self) -> None:
        """A second look in float64; the draws are others than the first ones."""
        moved = self._perturbation
        for draw in range(AGAIN, AGAIN + 6):
            self._add(self._evaluate(moved.independent(draw)))
            self._add(self._evaluate(moved.keyed(draw)), ties_kept=True)
        for draw in range(2 * AGAIN, 2 * AGAIN + 8):
            self._exclude_chaotic(self._evaluate(moved.independent(draw, NOISE)))

    def more_shadow_draws(self) -> None:
        """A second look at the shadow: in both memory orders, and with every rounding moved."""
        for draw in range(2 * AGAIN, 2 * AGAIN + 8):
            copies = as_float32(self._perturbation.keyed(draw), fortran=bool(draw % 2))
            self._add(self._evaluate(copies, shadow=True), ties_kept=True)
        for draw in range(3 * AGAIN, 3 * AGAIN + 8):
            rng = self._rng.derive(f"auto/noisy/{draw}")
            copies = noisy(as_float32(self._inputs64), rng, self._unit)
            self._add(self._evaluate(copies, shadow=True))

    def reordered_draws(self) -> None:
        """The reference in float64 on column-major copies of moved inputs."""
        for draw in (4, 5):
            copies = {
                name: np.asfortranarray(array)
                for name, array in self._perturbation.keyed(draw).items()
            }
            self._add(self._evaluate(copies), ties_kept=True)

    def exclude_float64_overflow(self) -> None:
        """No verdict where the reference itself overflows, or nearly does: with no wider type at
        hand, where a right op overflows depends on its order of operations."""
        if all(np.isfinite(a).all() for a in self._inputs64.values() if a.dtype == np.float64):
            for output in self._outputs.values():
                if output.fmt is not None:
                    output.unstable |= ~output.finite
        at_headroom = self._evaluate(self._perturbation.magnitudes(HEADROOM))
        for name, values in (at_headroom or {}).items():
            self._outputs[name].exclude_overflow(values)

    def shadow_draws(self) -> bool:
        """The shadow on the inputs, on moved ones, and on large ones; False when it cannot run."""
        moved = self._perturbation
        plain = self._evaluate(as_float32(self._inputs64), shadow=True)
        if plain is None:
            return False
        self._add(plain, ties_kept=True)
        self._exclude_shadow_finite(plain)
        for draw in (2, 3, 4, 5):
            copies = as_float32(moved.keyed(draw), fortran=draw >= 4)
            self._add(self._evaluate(copies, shadow=True), ties_kept=True)
        at_headroom = self._evaluate(as_float32(moved.magnitudes(HEADROOM)), shadow=True)
        for name, values in (at_headroom or {}).items():
            self._outputs[name].exclude_overflow(values)
        return True

    def exclude_far_inputs(self) -> None:
        """No verdict at all where float32 intermediates may overflow or vanish unseen."""
        narrow = all(
            output.fmt is None or output.fmt.min_exponent > -126
            for output in self._outputs.values()
        )
        for array in self._inputs64.values():
            if array.dtype != np.float64:
                continue
            sizes = np.abs(array[np.isfinite(array) & (array != 0.0)])
            if not sizes.size:
                continue
            if sizes.max() > WEAK_LARGEST or (sizes.min() < WEAK_SMALLEST and not narrow):
                for output in self._outputs.values():
                    output.unstable[:] = True
                return

    def _evaluate(self, inputs: Arrays, *, shadow: bool = False) -> dict[str, NDArray[Any]] | None:
        """Flattened outputs; None when the evaluation failed or gave something else."""
        outputs = self._evaluations.outputs(inputs, shadow=shadow)
        if outputs is None:
            return None
        flat: dict[str, NDArray[Any]] = {}
        for name, output in self._outputs.items():
            values = outputs.get(name)
            known = values is not None and dtype_name(values.dtype) is not None
            if values is None or not known or values.shape != output.shape:
                self._evaluations.failed += 1
                return None
            flat[name] = values.reshape(-1)
        return flat

    def _add(
        self,
        values: dict[str, NDArray[Any]] | None,
        *,
        share: float = 1.0,
        ties_kept: bool = False,
    ) -> None:
        for name, flat in (values or {}).items():
            self._outputs[name].add(flat, share=share)
            if ties_kept:
                self._outputs[name].add_discrete(flat)

    def _exclude_chaotic(self, values: dict[str, NDArray[Any]] | None) -> None:
        for name, flat in (values or {}).items():
            output = self._outputs[name]
            # All zeros moved off zero would leave nothing to judge, and zero is what zero gives.
            if output.fmt is None or output.largest == 0.0:
                continue
            changed = np.abs(_clip(to_float64(flat), output.fmt) - output.reference)
            output.unstable |= output.finite & ~(changed <= output.largest / 4.0)

    def _exclude_shadow_finite(self, values: dict[str, NDArray[Any]]) -> None:
        """No verdict where float32 gives a number and float64 none: rounding decides there."""
        for name, flat in values.items():
            output = self._outputs[name]
            if output.fmt is not None:
                output.unstable |= ~output.finite & np.isfinite(to_float64(flat))


def _clip(values: Float64Array, fmt: FloatLimits) -> Float64Array:
    clipped: Float64Array = np.where(np.isinf(values), values, np.clip(values, -fmt.max, fmt.max))
    return clipped


def _spread_over_binades(
    error: Float64Array, reference: Float64Array, judged: BoolArray
) -> Float64Array:
    """Each element's error raised to the largest among those of the same power of two of |r|.

    A handful of draws misses the worst case of a single element, but hardly that of its peers.
    """
    _, exponents = np.frexp(np.where(judged, reference, 0.0))
    exponents = np.where(judged & (reference != 0.0), exponents, -2000)
    shifted = exponents - int(exponents.min(initial=0))
    largest = np.zeros(int(shifted.max(initial=0)) + 1)
    np.maximum.at(largest, shifted, np.where(judged, error, 0.0))
    spread: Float64Array = largest[shifted]
    return spread
