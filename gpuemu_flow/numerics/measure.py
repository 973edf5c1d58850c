"""Measure a case's envelope: evaluate the reference on perturbed inputs and in float32."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.bounds import ElementBound, unit
from gpuemu_flow.numerics.cancelling import Operands, cancelling
from gpuemu_flow.numerics.cancelling_torch import cancelling_torch
from gpuemu_flow.numerics.constants import add_constant_draws
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, FloatLimits, dtype_name
from gpuemu_flow.numerics.evaluations import Evaluations, same_outputs
from gpuemu_flow.numerics.marking import STAND_INS, inverting, marking, stepping
from gpuemu_flow.numerics.noise import doubting, flushing, noisy, noisy64
from gpuemu_flow.numerics.operand import Rounding
from gpuemu_flow.numerics.overflow import FAR, overflowing
from gpuemu_flow.numerics.perturb import (
    Arrays,
    Perturbation,
    as_float32,
    has_far_values,
    largest_magnitude,
    widen,
)
from gpuemu_flow.numerics.regroup import regrouped
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.spread import HEADROOM, Spread

GROWN = 2
"""Number of evaluations on enlarged magnitudes, besides the evaluation on |x| itself."""

FEW_BITS = 2.0**-140
"""Magnitude below which a float32 has at most nine bits, so that rounding errors are large."""

NOISE = 64.0
"""Noise, in units of one rounding, that a result must withstand to have a verdict at all."""

AGAIN = 100
"""Number of the first draw of a thorough measurement."""

SECOND_LOOK_SAFETY = 1.5
"""Factor on the measured error before a case fails, since the largest of some twenty draws is still
below the worst case. Without it, a correct attention reached 0.92 of the tolerance."""

SETTLING = 12
"""Number of draws, none of which may change an integer if its verdict is to be restored."""

NOISY = 4
"""Number of draws that perturb a float64 reference's roundings; three times as many if thorough."""

CANCELLING = 8
"""Number of draws in which operands of sums are perturbed; a second look makes twice as many."""

STEPPED = 8
"""Number of rounding operations, from the first on, that are perturbed one at a time."""

ROUNDED = 5
"""Number of draws in which intermediate results are rounded at random."""


class ErrorMeasurement:
    """The envelopes of one case's outputs; the constructor evaluates the reference.

    Parameters
    ----------
    inputs, expected64 : mapping of str to ndarray
        The case's inputs in their own dtypes; the reference's outputs, floats as float64.
    evaluations : Evaluations
    formats : mapping of str to FloatLimits or None
        Float format of each output; None for integers and booleans.
    longest_dim, seed, weak : see `envelope.build_envelope`
    thorough : bool
        True for more draws of every kind, in a case that is about to fail: few draws may miss the
        largest change of an ill-conditioned element. Each further draw halves the risk.
    rounding : Rounding, optional
        Which intermediate values a correct op may round to a narrower type.

    Attributes
    ----------
    weak : bool
        True if measured without a shadow (the reference's source, changed to compute in float32).
    fault : str
        Reason why every evaluation on perturbed inputs failed; empty if one succeeded.

    Notes
    -----
    With r the expected value, x the inputs, u one rounding of float32, n the longest dim, least the
    result of `bounds.least`, and ``g = 1 + sqrt(n) / 8``::

        allowed = 8 g (E + u S + least) + 2 R + 2 ulp(r)

    E is the largest change, over the evaluations, of the element or of any other element in the
    binade of |r|. R is the same over evaluations that also round values to a narrower type, as
    `rounding` specifies. Where the element's own change is used in place of E, ``8 g C`` is added;
    C is the largest change over evaluations that perturb the roundings of constants (see
    `constants`). S is the larger of |r| and, unless the result grows exponentially, the reference
    at |x|, which for sums of products is the sum of the magnitudes (Higham, "Accuracy and Stability
    of Numerical Algorithms", 2002, 3.1). Such a sum is finite and never shrinks as any |x| grows.
    The reference at |x| need not be such a sum: where 1 - x becomes 1 - |x|, it may have a pole far
    from the result. Hence the reference is also evaluated on magnitudes that are each multiplied by
    a random factor between 1 and 2, and S uses the smallest of these results. S is limited to the
    maximum of four numbers: |r|, the largest |x|, 1, and ``16 sqrt(N) E / u``, where N is the
    largest number of elements of an input: the error of a sum of N terms that are each perturbed by
    a rounding is at least about ``u S / sqrt(N)``.

    There is no verdict where ``8 g (E + u S) + 2 R`` is more than half of the value's scale: an op
    that is ten times off, or gives 0, would pass there. The scale is the largest of |r|, of S with
    the limits above, and of the median magnitude of the results that are not 0. Nor is there a
    verdict

    - where 64 units of noise change the result by more than a quarter of the largest result;
    - where r is finite and the float32 shadow is not, or is not at 1024 |x| (unless the result
      grows exponentially);
    - where the shadow and r are neither both finite nor the same NaN or infinity, if every sum that
      may overflow in some order of its terms is made to overflow (see `overflow`);
    - on elements beyond their tolerance that depend on a value which overflows under `rounding`;
    - on any element, if no evaluation succeeds.

    A reference that refuses float64 is evaluated in float32 or, if it refuses both, in the case's
    own dtype. Its inputs are then perturbed by that dtype's rounding; the effect counts as R.

    Without a shadow, errors of intermediates that the result does not depend on in exact arithmetic
    (a maximum subtracted and added again) go unseen. S is then raised to the largest of |x| and 1,
    but to no more than the largest |r|.
    """

    def __init__(
        self,
        inputs: Arrays,
        expected64: Arrays,
        evaluations: Evaluations,
        *,
        formats: Mapping[str, FloatLimits | None],
        longest_dim: int,
        seed: int,
        weak: bool,
        thorough: bool = False,
        rounding: Rounding | None = None,
    ) -> None:
        self._outputs = {name: Spread(array, formats[name]) for name, array in expected64.items()}
        in_float64 = {fmt.name for fmt in formats.values() if fmt is not None} == {"float64"}
        self._longest_dim, self._thorough = longest_dim, thorough
        self._inputs64 = widen(inputs)
        self._unit = unit(FLOAT_LIMITS["float64" if in_float64 else "float32"])
        session = _Session(self._outputs, evaluations, self._inputs64, seed, self._unit)
        self._session = session
        before = evaluations.succeeded
        with np.errstate(all="ignore"):
            session.plain_draws()
            if thorough:
                session.more_plain_draws()
            self.fault = evaluations.reason if evaluations.succeeded == before else ""
            if evaluations.succeeded == before:
                session.exclude_all()
            # No type is wider than float64: the reference's own rounding is measured instead.
            if in_float64:
                session.reordered_draws()
                session.noisy_draws(3 * NOISY if thorough else NOISY)
                session.exclude_float64_overflow()
            self._shadowed = not (in_float64 or weak) and session.shadow_draws()
            if thorough and self._shadowed:
                session.more_shadow_draws()
            # Inputs that are integers are not perturbed.
            if self._shadowed and (thorough or evaluations.from_integers):
                session.noisy_shadow_draws()
            if self._shadowed:
                session.constant_draws(thorough=thorough)
                session.restore_exact()
            if rounding is not None and not in_float64:
                session.rounded_draws(rounding, shadow=self._shadowed, thorough=thorough)
            if not self._shadowed and not in_float64:
                session.exclude_far_inputs()
        self.weak = not self._shadowed and not in_float64

    def look_for_cancellation(self) -> None:
        """Evaluate the reference with the operands of its sums perturbed; see `cancelling`."""
        if not self.weak:
            count = 2 * CANCELLING if self._thorough else CANCELLING
            with np.errstate(all="ignore"):
                self._session.cancelling_draws(count, shadow=self._shadowed)

    def bounds(self) -> dict[str, ElementBound]:
        """Return the envelope of every output."""
        with np.errstate(all="ignore"):
            return {
                name: output.bound(
                    self._longest_dim,
                    self._unit,
                    terms=max((array.size for array in self._inputs64.values()), default=1),
                    usual=max(1.0, largest_magnitude(self._inputs64)),
                    weak=not self._shadowed,
                    safety=SECOND_LOOK_SAFETY if self._thorough else 1.0,
                )
                for name, output in self._outputs.items()
            }


class _Session:
    """The evaluations of one case."""

    def __init__(
        self,
        outputs: Mapping[str, Spread],
        evaluations: Evaluations,
        inputs64: Arrays,
        seed: int,
        unit_roundoff: float,
    ) -> None:
        self._outputs = outputs
        self._evaluations = evaluations
        self._inputs64 = inputs64
        self._rng = SeededRng(seed)
        self._unit = unit_roundoff
        self._seed = seed
        self._narrow = False
        self._steps: list[str] = []
        self._perturbation = Perturbation(inputs64, seed, unit_roundoff)

    def plain_draws(self) -> None:
        """Evaluate the reference in float64 on perturbed inputs and on their magnitudes."""
        first = self._evaluate(self._perturbation.independent(0))
        self._use_own_rounding()
        if not self._narrow:
            self._add(first)
        moved = self._perturbation
        for draw in range(0 if self._narrow else 1, 3):
            self._add(self._evaluate(moved.independent(draw)))
        for draw in range(2):
            self._add(self._evaluate(moved.keyed(draw)), ties_kept=True)
        self._add(self._evaluate(moved.scaled()))
        self._flush(moved.flushed())
        self._flush(moved.flushed(FEW_BITS))
        self._take_magnitudes()
        if not self._narrow:
            self._add_noise(self._evaluate(moved.independent(3, NOISE)))

    def _flush(self, inputs: Arrays | None) -> None:
        """Add the results on inputs with flushed subnormals; do nothing if `inputs` is None."""
        if inputs is not None:
            self._add_flushed(self._evaluate(inputs))

    def _use_own_rounding(self) -> None:
        """If the reference accepts only a narrow dtype, perturb by one rounding of that dtype."""
        own = self._evaluations.own_format
        if own is not None and own.eps > self._unit:
            self._narrow = True
            self._perturbation = Perturbation(self._inputs64, self._seed, own.eps)

    def _take_magnitudes(self) -> None:
        moved = self._perturbation
        sizes = [moved.magnitudes(), *(moved.grown(draw) for draw in range(GROWN))]
        found = [values for values in map(self._evaluate, sizes) if values is not None]
        at_headroom = self._evaluate(moved.magnitudes(HEADROOM))
        if len(found) == len(sizes) and at_headroom is not None:
            for name, output in self._outputs.items():
                output.add_magnitudes([values[name] for values in found], at_headroom[name])

    def more_plain_draws(self) -> None:
        """Evaluate the reference in float64 on further perturbed inputs."""
        moved = self._perturbation
        for draw in range(AGAIN, AGAIN + 6):
            self._add(self._evaluate(moved.independent(draw)))
            self._add(self._evaluate(moved.keyed(draw)), ties_kept=True)
            self._flush(moved.flushed_some(draw))
        for draw in range(2 * AGAIN, 2 * AGAIN + (0 if self._narrow else 8)):
            self._add_noise(self._evaluate(moved.independent(draw, NOISE)))

    def more_shadow_draws(self) -> None:
        """Evaluate the shadow again on perturbed inputs, in both memory orders."""
        for draw in range(2 * AGAIN, 2 * AGAIN + 8):
            copies = as_float32(self._perturbation.keyed(draw), fortran=bool(draw % 2))
            self._add(self._evaluate(copies, shadow=True), ties_kept=True)

    def noisy_shadow_draws(self) -> None:
        """Evaluate the shadow with every rounding of numpy's arithmetic perturbed."""
        for draw in range(3 * AGAIN, 3 * AGAIN + 8):
            rng = self._rng.derive(f"auto/noisy/{draw}")
            moved = noisy(as_float32(self._inputs64), rng, self._unit)
            self._add(self._evaluate(moved, shadow=True))

    def rounded_draws(self, rounding: Rounding, *, shadow: bool, thorough: bool) -> None:
        """Evaluate the shadow with rounded operands or steps: to nearest, then at random.

        If every step may be rounded, the reference is also evaluated in the case's own dtype:
        functions of frameworks, given narrow inputs, round each of their steps themselves.
        """
        if rounding.steps:
            self._add_rounded(self._checked(self._evaluations.own_outputs(self._inputs64)))
        if not shadow:
            return
        inputs = as_float32(self._inputs64)
        plain = self._evaluate(inputs, shadow=True)
        beyond = self._evaluate(inputs, shadow=True, rounding=rounding.overflowing())
        if plain is None or beyond is None or same_outputs(plain, beyond):
            return  # nothing there that is rounded
        nearest = self._evaluate(inputs, shadow=True, rounding=rounding)
        for name, flat in (nearest or {}).items():
            self._outputs[name].exclude_downstream(beyond[name], flat)
        self._add_rounded(nearest, operands=not rounding.steps)
        first, count = (AGAIN, 3 * ROUNDED) if thorough else (0, ROUNDED)
        for draw in range(first, first + count):
            seed = self._rng.derive(f"auto/rounded/{draw}").gen_u64()
            drawn = self._evaluate(inputs, shadow=True, rounding=rounding.drawn(seed))
            self._add_rounded(drawn, operands=not rounding.steps)

    def reordered_draws(self) -> None:
        """Evaluate the reference in float64 on column-major copies of perturbed inputs."""
        for draw in (4, 5):
            copies = {
                name: np.asfortranarray(array)
                for name, array in self._perturbation.keyed(draw).items()
            }
            self._add(self._evaluate(copies), ties_kept=True)

    def noisy_draws(self, count: int) -> None:
        """Evaluate the reference in float64 with every rounding of numpy's arithmetic perturbed.

        Perturbed inputs do not show the rounding of intermediate results. If two logarithms near
        350 are subtracted, the logarithms' rounding errors are far larger than those of the inputs.
        """
        for draw in range(4 * AGAIN, 4 * AGAIN + count):
            rng = self._rng.derive(f"auto/noisy/{draw}")
            self._add(self._evaluate(noisy64(self._inputs64, rng, self._unit)))

    def cancelling_draws(self, count: int, *, shadow: bool) -> None:
        """Evaluate the shadow, or the reference in float64, with the operands of sums perturbed."""
        inputs = as_float32(self._inputs64) if shadow else self._inputs64
        operands, tensors = Operands(), Operands()
        with cancelling_torch(self._rng, 0.0, tensors):
            self._evaluate(cancelling(inputs, self._rng, 0.0, operands), shadow=shadow)
        for draw in range(5 * AGAIN, 5 * AGAIN + count):
            # Up, then down: the sign of what is left may decide whether it shows at all.
            rng = self._rng.derive(f"auto/cancelling/{draw // 2}")
            unit_now = -self._unit if draw % 2 else self._unit
            moved = cancelling(inputs, rng, unit_now, operands)
            with cancelling_torch(rng, unit_now, tensors):
                values = self._evaluate(moved, shadow=shadow)
            for name, flat in (values or {}).items():
                self._outputs[name].add_cancelled(flat)

    def exclude_float64_overflow(self) -> None:
        """Withhold the verdict where the reference overflows in float64, or nearly does.

        No type is wider, and the order of operations decides whether a correct op overflows.
        """
        if all(np.isfinite(a).all() for a in self._inputs64.values() if a.dtype == np.float64):
            for output in self._outputs.values():
                if output.fmt is not None:
                    output.unstable |= ~output.finite
        at_headroom = self._evaluate(self._perturbation.magnitudes(HEADROOM))
        for name, values in (at_headroom or {}).items():
            self._outputs[name].exclude_overflow(values)

    def shadow_draws(self) -> bool:
        """Evaluate the shadow on original, perturbed and large inputs; return False if it fails."""
        moved = self._perturbation
        plain = self._evaluate(as_float32(self._inputs64), shadow=True)
        if plain is None:
            return False
        self._add(plain, ties_kept=True)
        for name, flat in plain.items():
            self._outputs[name].exclude_finite(flat)
        for draw in (2, 3, 4, 5):
            copies = as_float32(moved.keyed(draw), fortran=draw >= 4)
            self._add(self._evaluate(copies, shadow=True), ties_kept=True)
        self._add(self._evaluate(regrouped(as_float32(self._inputs64)), shadow=True))
        copies = flushing(as_float32(self._inputs64), self._steps)
        self._add_flushed(self._evaluate(copies, shadow=True))
        self._add_inverted(plain)
        at_headroom = self._evaluate(as_float32(moved.magnitudes(HEADROOM)), shadow=True)
        for name, values in (at_headroom or {}).items():
            self._outputs[name].exclude_overflow(values)
        self._overflowing_draw()
        return True

    def constant_draws(self, *, thorough: bool) -> None:
        """Evaluate the shadow with perturbed roundings of values computed from constants alone."""
        if self._evaluations.makes_arrays:
            inputs = as_float32(self._inputs64)
            evaluate = functools.partial(self._evaluate, shadow=True)
            add_constant_draws(
                self._outputs, evaluate, inputs, self._rng, self._unit, thorough=thorough
            )

    def _overflowing_draw(self) -> None:
        """Add results of a shadow in which sums overflow if any order of their terms overflows."""
        if largest_magnitude(self._inputs64) < FAR:
            return
        values = self._evaluate(overflowing(as_float32(self._inputs64)), shadow=True)
        self._add(values, ties_kept=True)
        for name, flat in (values or {}).items():
            self._outputs[name].exclude_other_kinds(flat)

    def _add_inverted(self, plain: dict[str, NDArray[Any]]) -> None:
        """Add results of the shadow that multiplies by reciprocals which overflow in float32.

        Nearly all quantisers multiply by the reciprocal of their scale, and a row of tiny values
        has a subnormal scale.
        """
        for stand_in in STAND_INS:
            copies = inverting(as_float32(self._inputs64), stand_in)
            values = self._evaluate(copies, shadow=True)
            if values is None or same_outputs(values, plain):
                return
            for name, flat in values.items():
                self._outputs[name].add_beyond(flat)

    def restore_exact(self) -> None:
        """Restore the verdict on elements that no rounding of the computation can change.

        Perturbed inputs may change an integer that the actual inputs determine exactly, such as one
        rounded from a tie, and may miss a change where two effects of the same scale cancel. Hence
        roundings alone decide: an integer that depends on none gets a verdict, and one that
        perturbed roundings change gets none.

        Float outputs are treated in the same way if the reference rounds to integers to compute
        them, as fake quantisation in training does.
        """
        if not self._steps and all(spread.fmt is not None for spread in self._outputs.values()):
            return
        marked = [
            self._evaluate(marking(as_float32(self._inputs64), stand_in), shadow=True)
            for stand_in in STAND_INS
        ]
        moved = []
        for draw in range(SETTLING):
            rng = self._rng.derive(f"auto/settling/{draw}")
            copies = doubting(as_float32(self._inputs64), rng, 8.0 * self._unit)
            moved.append(self._evaluate(copies, shadow=True))
        for turn in range(1, STEPPED + 1):
            for change in (8.0 * self._unit, -8.0 * self._unit):
                copies, met = stepping(as_float32(self._inputs64), turn, change)
                moved.append(self._evaluate(copies, shadow=True))
            if len(met) < turn:
                break
        for name, output in self._outputs.items():
            output.restore_exact(
                marked=[None if values is None else values[name] for values in marked],
                moved=[None if values is None else values[name] for values in moved],
            )

    def exclude_all(self) -> None:
        """Withhold the verdict on every element, because nothing is known of the errors."""
        for output in self._outputs.values():
            output.unstable[:] = True

    def exclude_far_inputs(self) -> None:
        """Without a shadow, withhold all verdicts if float32 may leave its range on the inputs."""
        formats = [output.fmt for output in self._outputs.values()]
        narrow = all(fmt is None or fmt.min_exponent > -126 for fmt in formats)
        if has_far_values(self._inputs64, small=not narrow):
            self.exclude_all()

    def _evaluate(
        self, inputs: Arrays, *, shadow: bool = False, rounding: Rounding | None = None
    ) -> dict[str, NDArray[Any]] | None:
        """Return flat outputs; None if evaluation fails or an output is missing or misshapen."""
        return self._checked(self._evaluations.outputs(inputs, shadow=shadow, rounding=rounding))

    def _checked(self, outputs: Arrays | None) -> dict[str, NDArray[Any]] | None:
        if outputs is None:
            return None
        flat: dict[str, NDArray[Any]] = {}
        for name, output in self._outputs.items():
            values = outputs.get(name)
            known = values is not None and dtype_name(values.dtype) is not None
            if values is None or not known or values.shape != output.shape:
                fault = f"its output {name!r} has another shape or dtype on slightly changed inputs"
                self._evaluations.refuse(fault)
                return None
            flat[name] = np.asarray(values).reshape(-1)
        return flat

    def _add(self, values: dict[str, NDArray[Any]] | None, *, ties_kept: bool = False) -> None:
        for name, flat in (values or {}).items():
            output = self._outputs[name]
            add = output.add_rounded if self._narrow else output.add
            add(flat)
            if ties_kept:
                output.add_discrete(flat)

    def _add_rounded(
        self, values: dict[str, NDArray[Any]] | None, *, operands: bool = False
    ) -> None:
        for name, flat in (values or {}).items():
            self._outputs[name].add_rounded(flat, operands=operands)
            self._outputs[name].add_discrete(flat)

    def _add_noise(self, values: dict[str, NDArray[Any]] | None) -> None:
        for name, flat in (values or {}).items():
            self._outputs[name].add_noise(flat)

    def _add_flushed(self, values: dict[str, NDArray[Any]] | None) -> None:
        for name, flat in (values or {}).items():
            self._outputs[name].add_flushed(flat)
