"""Measure a case's envelope: evaluate the reference on perturbed inputs and in float32."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.cancelling import Operands, cancelling, cancelling_torch
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, FloatLimits, dtype_name
from gpuemu_flow.numerics.evaluations import Evaluations, same_outputs
from gpuemu_flow.numerics.judge import ElementBound, unit
from gpuemu_flow.numerics.noise import (
    STAND_INS,
    flushing,
    inverting,
    marking,
    stepping,
)
from gpuemu_flow.numerics.operand import Rounding
from gpuemu_flow.numerics.perturb import (
    Arrays,
    Perturbation,
    as_float32,
    branch_sides,
    has_far_values,
    largest_magnitude,
    moved_integers,
    widen,
)
from gpuemu_flow.numerics.regroup import FAR, add_constant_draws, overflowing, regrouped
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

SHUFFLED = 3
"""Number of evaluations with shuffled elements, for ops that are accurate by norm."""

CANCELLING = 8
"""Number of draws in which operands of sums are perturbed; a second look makes twice as many."""

STEPPED = 16
"""Number of rounding operations, from the first on, that are perturbed one at a time."""

ROUNDED = 5
"""Number of draws in which intermediate results are rounded at random."""


class ErrorMeasurement:
    """The envelopes of one case's outputs, from evaluations of the reference.

    The constructor makes the first five, `go_on` six more, `finish` the rest. `early_bound` can be
    asked for before the rest is made, and `bounds` after it.

    The tolerance ``allowed`` of an element is the error that a correct op may have there. Symbols:

    - r, x, n, N: the expected value; the inputs; the longest dim; the size of the largest input;
    - u, least: one rounding, and the smallest normal number (see `bounds`);
    - g: ``1 + sqrt(n) / 8``, a model of how rounding errors grow;
    - E: the largest change, in any evaluation, of any element in the binade of |r|;
    - R: the same, in evaluations that round values to a narrower type, as `rounding` specifies;
    - F, C: the element's largest change over evaluations that flush subnormals to 0, and over those
      that perturb the roundings of constants (see `constants`);
    - S: an estimate of the sum of the magnitudes of the terms of r.

    The formula is ``allowed = 8 g (E + u S + least) + g F + 2 R + 2 ulp(r)``. Of this,
    ``8 g (E + u S) + 2 R`` is limited to half of the scale: the largest of |r|, S and the median
    magnitude of the results that are not 0. An element's *own part* has the element's own changes
    in place of E and R. Where the own part plus ``8 g C`` is larger, this sum is the tolerance; for
    large C, see `Spread.bound`.

    S is the larger of |r| and, unless the result grows exponentially, the reference at |x|. For
    sums of products, this is the sum of the magnitudes (Higham, "Accuracy and Stability of
    Numerical Algorithms", 2002, 3.1). If the reference is smaller at larger |x|, as near a pole,
    the smaller value is used (see `Spread.add_magnitudes`). S is limited to the maximum of |r|, the
    largest |x|, 1, and ``16 sqrt(N) E / u``. A larger S would show in E, since rounding N terms
    changes a sum by at least some ``u S / sqrt(N)``.

    There is no verdict

    - where the own part or ``8 C`` exceeds half of the scale, since 0 might pass there;
    - where inputs perturbed by 64 u change r by more than a quarter of the largest result;
    - where only one of r and the shadow is finite, or r is finite and the shadow at 1024 |x| is not
      (unless the result grows exponentially);
    - where r and the shadow with overflowing sums (see `overflow`) differ, unless both are finite;
    - on elements beyond their tolerance that depend on a value which overflows under `rounding`;
    - on any element, if no evaluation succeeds.

    A reference that refuses float64 is evaluated in float32 or, if it refuses both, in the case's
    own dtype. Its inputs are then perturbed by that dtype's rounding; the effect counts as R.

    If all of an output is 0, as ``log(exp(x).sum()) - x`` of one element, all terms cancel exactly
    in the reference alone. S is then raised to the largest of |x| and 1.

    Without a shadow, errors of a value that is subtracted and added again, such as a maximum, go
    unseen. S is then raised to the largest of |x| and 1, but to no more than the largest |r|.
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
        by_norm: bool = False,
        near: Collection[float] = (),
    ) -> None:
        self._by_norm = by_norm
        steps = rounding is not None and rounding.steps
        self._step = FLOAT_LIMITS[rounding.dtype].eps / 2 if rounding and steps else 0.0
        self._outputs = {name: Spread(array, formats[name]) for name, array in expected64.items()}
        in_float64 = {fmt.name for fmt in formats.values() if fmt is not None} == {"float64"}
        self._longest_dim, self._thorough = longest_dim, thorough
        self._inputs64 = widen(inputs)
        self._unit = unit(FLOAT_LIMITS["float64" if in_float64 else "float32"])
        session = _Session(self._outputs, evaluations, self._inputs64, seed, self._unit)
        self._session = session
        self._rounding = rounding
        self._in_float64 = in_float64
        self._weak = weak
        self.fault = ""
        self.weak = weak
        self._shadowed = self._went_on = False
        self._evaluations = evaluations
        self._before = evaluations.succeeded
        with np.errstate(all="ignore"):
            session.keep_sides(near)
            session.first_draws()

    def go_on(self) -> bool:
        """Make the other plain evaluations in float64; return False if they were made before."""
        if self._went_on:
            return False
        self._went_on = True
        with np.errstate(all="ignore"):
            self._session.plain_draws()
        return True

    def finish(self) -> None:
        """Make all evaluations that are left."""
        session, evaluations, thorough = self._session, self._evaluations, self._thorough
        self.go_on()
        with np.errstate(all="ignore"):
            if thorough:
                session.more_plain_draws()
            self.fault = evaluations.reason if evaluations.succeeded == self._before else ""
            if evaluations.succeeded == self._before:
                session.exclude_all()
            if self._by_norm:
                session.take_terms()
            # No type is wider than float64: the reference's own rounding is measured instead.
            if self._in_float64:
                session.reordered_draws()
                session.exclude_float64_overflow()
            self._shadowed = not (self._in_float64 or self._weak) and session.shadow_draws()
            if self._shadowed:
                session.constant_draws(thorough=thorough)
                session.restore_exact()
            if self._rounding is not None and not self._in_float64:
                session.rounded_draws(self._rounding, shadow=self._shadowed, thorough=thorough)
            if not self._shadowed and not self._in_float64:
                session.exclude_far_inputs()
        self.weak = not self._shadowed and not self._in_float64

    def look_for_cancellation(self) -> None:
        """Evaluate the reference with the operands of its sums perturbed; see `cancelling`. Integer
        inputs that it uses as numbers are perturbed, too."""
        with np.errstate(all="ignore"):
            self._session.integer_draws()
        if not self.weak:
            count = 2 * CANCELLING if self._thorough else CANCELLING
            with np.errstate(all="ignore"):
                self._session.cancelling_draws(count, shadow=self._shadowed)

    @functools.cached_property
    def _terms(self) -> int:
        return max((array.size for array in self._inputs64.values()), default=1)

    @functools.cached_property
    def _usual(self) -> float:
        return max(1.0, largest_magnitude(self._inputs64))

    def early_bound(self, name: str) -> ElementBound | None:
        """Return a bound from the evaluations so far; see `Spread.early_bound`."""
        with np.errstate(all="ignore"):
            return self._outputs[name].early_bound(
                self._longest_dim, self._unit, terms=self._terms, usual=self._usual
            )

    def bounds(self) -> dict[str, ElementBound]:
        """Return the bounds on the errors of each output's elements, by the output's name."""
        with np.errstate(all="ignore"):
            return {
                name: output.bound(
                    self._longest_dim,
                    self._unit,
                    terms=self._terms,
                    usual=self._usual,
                    weak=not self._shadowed,
                    safety=SECOND_LOOK_SAFETY if self._thorough else 1.0,
                    step=self._step,
                    by_norm=self._by_norm,
                )
                for name, output in self._outputs.items()
            }


class _Session:
    """The evaluations of one case's reference, each added to the `Spread` of every output."""

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

    def keep_sides(self, numbers: Collection[float]) -> None:
        """Let no perturbation cross a number that the reference compares inputs with."""
        sides = branch_sides(self._inputs64, numbers, self._evaluate)
        if sides:
            self._perturbation = Perturbation(self._inputs64, self._seed, self._unit, sides)

    def first_draws(self) -> None:
        """Evaluate the reference in float64 on perturbed inputs once, and on their magnitudes."""
        first = self._evaluate(self._perturbation.independent(0))
        self._use_own_rounding()
        if not self._narrow:
            self._add(first)
        self._take_magnitudes()

    def plain_draws(self) -> None:
        """Evaluate the reference in float64 on more perturbed inputs."""
        moved = self._perturbation
        for draw in range(0 if self._narrow else 1, 3):
            self._add(self._evaluate(moved.independent(draw)))
        for draw in range(2):
            self._add(self._evaluate(moved.keyed(draw)), ties_kept=True)
        self._add(self._evaluate(moved.scaled()))
        self._flush(moved.flushed())
        self._flush(moved.flushed(FEW_BITS))
        if not self._narrow:
            self._add_noise(self._evaluate(moved.independent(3, NOISE)))

    def _flush(self, inputs: Arrays | None) -> None:
        """Evaluate the reference on inputs with flushed subnormals, unless `inputs` is None."""
        if inputs is not None:
            self._add_flushed(self._evaluate(inputs))

    def _use_own_rounding(self) -> None:
        """If the reference accepts only a narrow dtype, perturb inputs by that dtype's rounding."""
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

    def take_terms(self) -> None:
        """Evaluate the reference on magnitudes, of every second input negative, and shuffled.

        The terms of ``(a - b)**2`` are then as large as those of its expansion, and no element is 0
        because those that it depends on are.
        """
        sizes = self._perturbation.magnitudes()
        floats = [name for name, array in sizes.items() if array.dtype == np.float64]
        for draw in range(1 + SHUFFLED):
            rng = self._rng.derive(f"auto/terms/{draw}")
            moved = dict(sizes)
            for number, name in enumerate(floats):
                flat = sizes[name].reshape(-1)
                order = np.argsort(rng.u64(flat.size), kind="stable") if draw else slice(None)
                moved[name] = (-1.0) ** number * flat[order].reshape(sizes[name].shape)
            for name, values in (self._evaluate(moved) or {}).items():
                self._outputs[name].add_terms(values)

    def more_plain_draws(self) -> None:
        """Evaluate the reference in float64 on further perturbed inputs."""
        moved = self._perturbation
        for draw in range(AGAIN, AGAIN + 6):
            self._add(self._evaluate(moved.independent(draw)))
            self._add(self._evaluate(moved.keyed(draw)), ties_kept=True)
            self._flush(moved.flushed_some(draw))
        for draw in range(2 * AGAIN, 2 * AGAIN + (0 if self._narrow else 8)):
            self._add_noise(self._evaluate(moved.independent(draw, NOISE)))

    def rounded_draws(self, rounding: Rounding, *, shadow: bool, thorough: bool) -> None:
        """Evaluate the reference with intermediate values rounded to a narrower type.

        If `shadow`, evaluate in float32: round to nearest first, then at random. If every step is
        rounded, also evaluate in the case's own dtype, in which frameworks round every step.
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

    def cancelling_draws(self, count: int, *, shadow: bool) -> None:
        """Evaluate the reference, in float32 if `shadow`, with the operands of sums perturbed."""
        inputs = as_float32(self._inputs64) if shadow else self._inputs64
        operands, tensors = Operands(), Operands()
        with cancelling_torch(self._rng, 0.0, tensors):
            self._evaluate(
                cancelling(inputs, self._rng, 0.0, operands, shadow=shadow), shadow=shadow
            )
        for draw in range(5 * AGAIN, 5 * AGAIN + count):
            # Up, then down: the sign of what is left may decide whether it shows at all.
            rng = self._rng.derive(f"auto/cancelling/{draw // 2}")
            unit_now = -self._unit if draw % 2 else self._unit
            moved = cancelling(inputs, rng, unit_now, operands, shadow=shadow)
            with cancelling_torch(rng, unit_now, tensors):
                values = self._evaluate(moved, shadow=shadow)
            for name, flat in (values or {}).items():
                self._outputs[name].add_cancelled(flat)

    def integer_draws(self) -> None:
        """Evaluate the reference in float64 on perturbed integers; see `moved_integers`."""
        for inputs in moved_integers(self._inputs64, self._seed, self._unit, self._evaluate):
            for name, flat in (self._evaluate(inputs) or {}).items():
                self._outputs[name].add_cancelled(flat)

    def exclude_float64_overflow(self) -> None:
        """Withhold the verdict where the reference overflows in float64, or nearly does.

        Whether a correct op overflows there depends on its order of operations. No type is wider.
        """
        if all(np.isfinite(a).all() for a in self._inputs64.values() if a.dtype == np.float64):
            for output in self._outputs.values():
                if output.fmt is not None:
                    output.unstable |= ~output.finite
        at_headroom = self._evaluate(self._perturbation.magnitudes(HEADROOM))
        for name, values in (at_headroom or {}).items():
            self._outputs[name].exclude_overflow(values)

    def shadow_draws(self) -> bool:
        """Evaluate the reference in float32 on several sets of inputs; return False if it fails."""
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
        """Evaluate the reference in float32, perturbing values that depend on constants alone."""
        if self._evaluations.makes_arrays:
            inputs = as_float32(self._inputs64)
            evaluate = functools.partial(self._evaluate, shadow=True)
            add_constant_draws(
                self._outputs, evaluate, inputs, self._rng, self._unit, thorough=thorough
            )

    def _overflowing_draw(self) -> None:
        """Evaluate the reference in float32; sums overflow if any order of their terms does."""
        if largest_magnitude(self._inputs64) < FAR:
            return
        values = self._evaluate(overflowing(as_float32(self._inputs64)), shadow=True)
        self._add(values, ties_kept=True)
        for name, flat in (values or {}).items():
            self._outputs[name].exclude_other_kinds(flat)

    def _add_inverted(self, plain: dict[str, NDArray[Any]]) -> None:
        """Evaluate in float32, with ``a / b`` as ``a * (1 / b)`` where ``1 / b`` overflows.

        Nearly all quantisers multiply by the reciprocal of a row's scale. If all values of the row
        are tiny, the scale is subnormal, and its reciprocal overflows.
        """
        for stand_in in STAND_INS:
            copies = inverting(as_float32(self._inputs64), stand_in)
            values = self._evaluate(copies, shadow=True)
            if values is None or same_outputs(values, plain):
                return
            for name, flat in values.items():
                self._outputs[name].add_beyond(flat)

    def restore_exact(self) -> None:
        """Correct the verdicts on integers by perturbing roundings instead of inputs.

        An integer that no rounding can change gets a verdict. One that perturbed roundings change
        gets none. Perturbed inputs prove less: they may change an integer that the actual inputs
        determine exactly, such as a rounded tie, and may miss a change where two effects cancel.

        If the reference rounds to integers to compute floats, as fake quantisation in training
        does, a float that no rounding can change keeps its verdict, too.
        """
        integers = any(spread.fmt is None for spread in self._outputs.values())
        if not self._steps and not integers:
            return
        marked = [
            self._evaluate(marking(as_float32(self._inputs64), stand_in), shadow=True)
            for stand_in in STAND_INS
        ]
        moved = []
        for turn in range(1, STEPPED + 1) if integers else ():
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
        """Withhold all verdicts if float32 arithmetic on the inputs may overflow or underflow."""
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
