"""The ``auto`` tolerance: the error allowed for a correct op, measured on the reference only.

The reference is evaluated in float64 on inputs perturbed by less than their own rounding, and, if
its source allows, once more in float32 arithmetic (its *shadow*). The differences between these
evaluations show how the problem itself amplifies rounding errors. The error of a correct op, whose
operations have another order, stays within a small multiple of these differences.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import (
    FLOAT_LIMITS,
    Float64Array,
    FloatLimits,
    dtype_name,
    to_float64,
)
from gpuemu_flow.numerics.evaluations import Evaluate, Evaluations, same_outputs
from gpuemu_flow.numerics.judge import AffineBound, Bound, ElementBound, make_quick_bound
from gpuemu_flow.numerics.measure import ErrorMeasurement
from gpuemu_flow.numerics.noise import STAND_INS, marking, noisy
from gpuemu_flow.numerics.operand import Rounding
from gpuemu_flow.numerics.perturb import FLOAT32_UNIT, Arrays, Perturbation, as_float32
from gpuemu_flow.numerics.rng import SeededRng

FINE, COARSE = 2.0**-20, 2.0**-10
"""Relative sizes of perturbations of roundings, to see whether outputs depend on them.

The coarse size is for integer outputs, of which only elements next to a step change.
"""

FAITHFUL = 2.0**-10
"""Largest deviation of a faithful shadow from the float64 result, relative to the largest value."""

AMPLIFYING_UNITS, AMPLIFYING_DRAWS = 8.0, 4
"""Size, in roundings of float32, and number of the changes of inputs that show amplification.

A recurrence rounds in each step, but a perturbation changes its inputs only once. Therefore, the
perturbation has the size of several roundings.
"""


Axis = tuple[str, int, int]
"""An axis of an input: the input's name, its number of axes, and the axis."""

USUAL = 64
"""Size of a dim up to which it does not matter whether an op reduces along it."""


class Envelope:
    """The ``auto`` tolerance of one case; nothing is evaluated before it is needed.

    The method `quick` gives a bound without evaluating the reference. The methods that evaluate the
    reference are for outputs that exceed this bound. `near` are numbers that the reference may
    compare inputs with.
    """

    def __init__(
        self,
        inputs: Arrays,
        expected64: Arrays,
        evaluate: Evaluate | None,
        *,
        dtype: str | Mapping[str, str],
        seed: int,
        exact_op: bool,
        exact_outputs: Collection[str] = (),
        weak: bool,
        rounding: Rounding | None = None,
        separate: Callable[[Axis], bool] = lambda _: False,
        by_norm: bool = False,
        near: Collection[float] = (),
    ) -> None:
        self._by_norm = by_norm
        self._near = near
        self._inputs = inputs
        self._expected = expected64
        self._formats: dict[str, FloatLimits | None] = {}
        for name, array in expected64.items():
            is_float = dtype_name(array.dtype) in FLOAT_LIMITS
            output_dtype = dtype if isinstance(dtype, str) else dtype.get(name, "")
            self._formats[name] = FLOAT_LIMITS.get(output_dtype) if is_float else None
        self._seed = seed
        self._exact_op = exact_op
        self._exact_outputs = frozenset(exact_outputs)
        self._weak = weak
        self._bounds: Mapping[str, ElementBound] | None = None
        self._rounding = rounding
        self._unexcused: set[str] = set()
        self._begun: ErrorMeasurement | None = None
        self._first: ErrorMeasurement | None = None
        self._fault = ""
        self._thorough: Mapping[str, ElementBound] | None = None
        self._separate = separate
        self.evaluations = None if evaluate is None else Evaluations(evaluate, inputs)

    @functools.cached_property
    def _longest_dim(self) -> int:
        """Return the longest dim along which rounding errors may add up, but `USUAL` at least.

        Axes along which the op does not combine elements do not count; see `is_separate`.
        """
        axes = [
            (size, (name, array.ndim, axis))
            for name, array in self._inputs.items()
            for axis, size in enumerate(array.shape)
        ]
        axes.sort(key=lambda each: -each[0])
        if not axes or axes[0][0] <= USUAL:
            return axes[0][0] if axes else 1
        return next((size for size, key in axes if not self._separate(key)), 0) or USUAL

    @property
    def label(self) -> str:
        """Return ``auto``, ``auto (exact)``, or ``auto (weak)`` if the reference has no shadow."""
        if self._exact_op:
            return "auto (exact)"
        return "auto (weak)" if self._weak else "auto"

    def label_of(self, name: str) -> str:
        """Return ``auto (exact)`` for an output that is exact, `label` for the others."""
        return "auto (exact)" if name in self._exact_outputs else self.label

    @property
    def rounds_steps(self) -> bool:
        """Tell whether a correct op may round the result of every step to a narrow type."""
        return self._rounding is not None and self._rounding.steps

    @property
    def reason(self) -> str:
        """Return the reason why no envelope could be measured; empty if one was.

        It cannot be measured if only the shadow (the reference in float32) can be evaluated.
        """
        return self._fault

    def quick(self, name: str) -> Bound:
        """Return a bound without evaluating the reference; it is never above that of `full`."""
        fmt = self._formats[name]
        if fmt is None:
            return AffineBound(0.0, 0.0)
        exact = self._is_exact(name)
        return make_quick_bound(fmt, 1 if exact else self._longest_dim, exact_op=exact)

    def _is_exact(self, name: str) -> bool:
        return self._exact_op or name in self._exact_outputs

    def early(self, name: str) -> Iterator[Bound]:
        """Yield a bound after some five evaluations, and one after six more. Neither is above the
        envelope on elements that have a verdict under it."""
        if self._bounds is not None or self._is_exact(name):
            return
        begun = self._begun = self._begun or self._begin(thorough=False)
        bound = None if begun is None else begun.early_bound(name)
        while begun is not None and bound is not None:
            yield bound
            bound = begun.early_bound(name) if begun.go_on() else None

    def full(self, name: str) -> Bound:
        """Return the envelope of an output; measure all outputs' envelopes if none are known yet.

        Measuring takes about 20 evaluations of the reference. If the output is exact, or if there
        is no reference to evaluate, return the bound of `quick`.
        """
        if self._is_exact(name):
            return self.quick(name)
        return self._excused(name, self.bounds().get(name)) or self.quick(name)

    def bounds(self) -> Mapping[str, ElementBound]:
        """Return the envelopes of all outputs.

        Empty for an exact op, or without a reference to evaluate.
        """
        if self._bounds is None:
            self._first = self._measure(self._begun or self._begin(thorough=False))
            self._bounds = self._first.bounds() if self._first else {}
        return self._bounds

    def cancelled(self, name: str) -> Bound:
        """Return the envelope that also allows for errors of terms that cancel; see `cancelling`.

        Call this only for an output that would otherwise fail, since it takes some more evaluations
        of the reference. Afterwards, `full` returns the same envelope.
        """
        if self._first is not None:
            self._first.look_for_cancellation()
            self._bounds, self._first = self._first.bounds(), None
        return self.full(name)

    def thorough(self, name: str) -> Bound:
        """Return the envelope from three times as many evaluations, for an output about to fail."""
        if self._is_exact(name):
            return self.quick(name)
        if self._thorough is None:
            measured = self._measure(self._begin(thorough=True))
            if measured:
                measured.look_for_cancellation()
            self._thorough = measured.bounds() if measured else {}
        return self._excused(name, self._thorough.get(name)) or self.quick(name)

    def _excused(self, name: str, bound: ElementBound | None) -> ElementBound | None:
        if bound is None or bound.excuse is None or name not in self._unexcused:
            return bound
        return bound.excuse.without

    def excuse(self, name: str, actual: NDArray[Any], expected: NDArray[Any]) -> None:
        """Narrow the tolerance of an output if rounded operands cannot explain its errors.

        A correct op may round its operands to a narrow type, which makes the tolerance wider. The
        wide tolerance of a single element is nearly as large as the errors of an op that also
        computes sums in the narrow type. But such an op has a larger mean squared error over all
        elements. If this error is too large, `full` and `thorough` return the tolerance for an op
        that does not round its operands.
        """
        self._unexcused.discard(name)
        found = (self._thorough or self.bounds()).get(name)
        if found is None or found.excuse is None:
            return
        if not found.excuse.holds(to_float64(actual).reshape(-1), to_float64(expected).reshape(-1)):
            self._unexcused.add(name)

    def final(self, name: str) -> Bound:
        """Return the bound by which the output was finally judged."""
        return self.full(name) if self._thorough is None else self.thorough(name)

    def _begin(self, *, thorough: bool) -> ErrorMeasurement | None:
        if self._exact_op or self.evaluations is None:
            return None
        return ErrorMeasurement(
            self._inputs,
            self._expected,
            self.evaluations,
            formats=self._formats,
            longest_dim=self._longest_dim,
            seed=self._seed,
            weak=self._weak,
            thorough=thorough,
            rounding=self._rounding,
            by_norm=self._by_norm,
            near=self._near,
        )

    def _measure(self, begun: ErrorMeasurement | None) -> ErrorMeasurement | None:
        if begun is not None:
            begun.finish()
            self._weak = begun.weak
            self._fault = self._fault or begun.fault
        return begun


def is_separate(key: Axis, samples: Iterable[Evaluations]) -> bool:
    """Tell whether the op does not combine elements along an axis of an input.

    Half of the positions along the axis get other values, then the other half. If no element of the
    output changes both times, each depends on one position along the axis at most: no errors add up
    there.
    """
    name, ndim, axis = key
    rng, changes = np.random.default_rng(0), False
    for evaluations in samples:
        array, plain = evaluations.wide.get(name), evaluations.plain
        if plain is None:
            return False
        if array is None or array.ndim != ndim or array.shape[axis] < 2:
            continue
        half = np.zeros(array.shape[axis], bool)
        half[rng.permutation(half.size)[: half.size // 2]] = True
        # Halves, so that a largest element does not only change its place.
        factor = array.dtype.type(0.5 if array.dtype.kind == "f" else 1)
        other = rng.permutation(array.reshape(-1)).reshape(array.shape) * factor
        found = []
        for chosen in (half, ~half):
            mask = chosen.reshape([-1 if at == axis else 1 for at in range(ndim)])
            moved = np.where(mask, other, array).astype(array.dtype)
            found.append(_differing(evaluations.outputs({**evaluations.wide, name: moved}), plain))
        first, second = found
        if first is None or second is None or any((first[n] & second[n]).any() for n in plain):
            return False
        changes = changes or any((first[n] | second[n]).any() for n in plain)
    return changes


def _differing(outputs: Arrays | None, plain: Arrays) -> dict[str, NDArray[np.bool_]] | None:
    """Mark the elements of each output that differ; None if the outputs cannot be compared."""
    if outputs is None or any(outputs[n].shape != plain[n].shape for n in plain):
        return None
    values = {n: (to_float64(outputs[n]), to_float64(plain[n])) for n in plain}
    return {n: ~((a == b) | (np.isnan(a) & np.isnan(b))) for n, (a, b) in values.items()}


def is_exact_op(samples: Collection[Evaluations]) -> bool:
    """Tell whether the op only moves, selects and compares values, or computes exactly.

    True when the reference in float64, on float32 inputs, always gives values that float32 can
    hold. Rounding excuses no error of such an op: copies, ReLU, max, one-hot, masks.
    """
    seen = decides = False
    for evaluations in samples:
        if evaluations.plain is None:
            return False
        for array in evaluations.plain.values():
            seen = True
            if dtype_name(array.dtype) not in FLOAT_LIMITS:
                decides = True
                continue
            if array.dtype != np.float64:
                return False  # it rounds to a narrower type itself, whatever it computed before
            values = to_float64(array)
            values = values[np.isfinite(values)]
            if not np.array_equal(values, _round32(values)):
                return False
    # Integers may be rounded quotients, on which earlier roundings have an effect.
    return seen and not (decides and any(map(_rounding_decides, samples)))


def rounds_in_float32(samples: Iterable[Evaluations]) -> bool:
    """Tell whether the shadow rounds where the reference in float64 does not, as in `x + y - x`."""
    for evaluations in samples:
        shadow = evaluations.outputs(as_float32(evaluations.wide), shadow=True)
        if shadow is not None and not same_outputs(shadow, evaluations.plain or {}):
            return True
    return False


def exact_outputs_of(samples: Collection[Evaluations]) -> list[str]:
    """Return the float outputs that no rounding can change, for an op that is not exact as a whole.

    The shadow (the reference in float32) is run twice on every sample. In the first run, each value
    that it rounds is replaced by NaN; in the second, each such value is perturbed. An output is
    returned if all runs give exactly the values of the float64 reference. Integer outputs are not
    returned: `measure` finds out case by case which of their elements depend on a rounding.
    """
    exact = _in_float32(samples)
    shown = False
    for evaluations in samples if exact else ():
        copies, wide = as_float32(evaluations.wide), evaluations.plain
        marked = evaluations.outputs(marking(copies, STAND_INS[0]), shadow=True)
        moved = evaluations.outputs(noisy(copies, SeededRng(0), COARSE), shadow=True)
        if wide is None or marked is None or moved is None:
            return []
        for name, array in wide.items():
            if array.dtype != np.float64 or name not in marked or name not in moved:
                exact.discard(name)
                continue
            touched = not _equal(marked[name], array)
            shown = shown or (touched and bool(np.isnan(to_float64(marked[name])).any()))
            if touched or not _equal(moved[name], array):
                exact.discard(name)
    return sorted(exact) if shown else []


def _in_float32(samples: Collection[Evaluations]) -> set[str]:
    """Return the float64 outputs that hold only values that float32 has, too."""
    found: set[str] | None = None
    for evaluations in samples:
        held = {
            name
            for name, array in (evaluations.plain or {}).items()
            if array.dtype == np.float64 and _equal(_round32(array), array)
        }
        found = held if found is None else found & held
    return found or set()


def _equal(values: NDArray[Any], expected: Float64Array) -> bool:
    return np.array_equal(to_float64(values), expected, equal_nan=True)


def _rounding_decides(evaluations: Evaluations) -> bool:
    """Tell whether intermediate roundings have an influence on an integer output.

    Perturbing the roundings may change no element, for example if nearly all results saturate.
    Therefore, each rounded value is replaced by NaN, which always shows an influence.
    """
    if _rounds_in_sight(evaluations, COARSE):
        return True
    copies = as_float32(evaluations.wide)
    plain = evaluations.outputs(copies, shadow=True)
    marked = [evaluations.outputs(marking(copies, each), shadow=True) for each in STAND_INS]
    return plain is not None and any(
        outputs is not None and not np.array_equal(outputs[name], plain[name], equal_nan=True)
        for outputs in marked
        for name in plain
    )


def shadow_is_faithful(samples: Iterable[Evaluations]) -> bool:
    """Tell whether the float32 shadow computes the reference's function, in float32 throughout.

    The shadow is the reference's source with float64 replaced by float32. The shadow's result is
    compared with the reference's float64 result, rounded to float32. Of an op that is exact in
    float32, too, it tells nothing.

    1. On every sample, both results must agree to within 2**-10 of the largest value. A sample is
       left out if a small perturbation of its inputs changes the float64 result by more than this.
       The problem then amplifies rounding errors, as a long recurrence can do, and two correct
       evaluations disagree. If all samples are left out, the shadow is not trusted.
    2. On at least one sample, the two results must differ. If they never differ, the shadow may
       compute in float64 and round only its result. But a faithful shadow may never differ either,
       if it rounds only once (a sum of two, a quotient) or has few outputs (a mean loss). So a
       shadow that never differs is trusted in two cases: if the reference is exact on small
       integers, or if perturbing the shadow's roundings (see `noise`) changes the shadow's result.
    """
    counted: list[Evaluations] = []
    differs, unit = False, COARSE
    for evaluations in samples:
        plain = evaluations.plain
        shadow = evaluations.outputs(as_float32(evaluations.wide), shadow=True)
        if plain is None or shadow is None or plain.keys() != shadow.keys():
            return False
        floats = {n: to_float64(a) for n, a in plain.items() if dtype_name(a.dtype) in FLOAT_LIMITS}
        # Float64 results, as of Python's own numbers, differ from rounded ones for no good reason.
        in_float32 = {name: _round32(to_float64(shadow[name])) for name in floats}
        if any(in_float32[name].shape != array.shape for name, array in floats.items()):
            return False
        if _deviation(in_float32, floats) > FAITHFUL:
            if not _amplifies(evaluations, floats):
                return False
            continue
        counted.append(evaluations)
        unit = FINE if floats else unit
        # A reference that refuses float64 computes in float32 itself.
        differs = differs or not evaluations.takes_float64 or _deviation(in_float32, floats) > 0.0
    return bool(counted) and (differs or _rounds(counted, unit))


def _rounds(samples: Collection[Evaluations], unit: float) -> bool:
    """Tell whether a shadow computes in float32, where its results do not show this.

    The results equal the float64 results rounded to float32. A shadow that computes in float64, and
    rounds only at the end, would give the same results. `unit` is the size of the perturbations:
    `FINE` if there are float outputs, else `COARSE`.
    """
    if is_exact_op([each.on(_small_integers(each.inputs)) for each in samples]):
        return True
    return any(map(_rounding_decides if unit == COARSE else _rounds_in_sight, samples))


def _deviation(values: Mapping[str, Float64Array], expected: Mapping[str, Float64Array]) -> float:
    """Return the largest error of an output divided by the output's largest expected magnitude.

    The expected values are rounded to float32 first. An element is ignored if its value or its
    expected value is not finite. If there are several outputs, the largest ratio is returned.
    """
    largest = 0.0
    for name, array in expected.items():
        rounded = _round32(array)
        both = np.isfinite(values[name]) & np.isfinite(rounded)
        distance = float(np.abs(values[name][both] - rounded[both]).max(initial=0.0))
        scale = float(np.abs(rounded[both]).max(initial=0.0))
        if distance > 0.0:
            largest = max(largest, distance / scale if scale > 0.0 else np.inf)
    return largest


def _amplifies(evaluations: Evaluations, plain: Mapping[str, Float64Array]) -> bool:
    """Tell whether a small perturbation of inputs changes the result by more than `FAITHFUL`.

    `plain` is the float64 result on the unperturbed inputs. The perturbation has the size of
    `AMPLIFYING_UNITS` roundings to float32.
    """
    moved = Perturbation(evaluations.wide, 0, FLOAT32_UNIT)
    for draw in range(AMPLIFYING_DRAWS):
        outputs = evaluations.outputs(moved.independent(draw, AMPLIFYING_UNITS))
        if outputs is not None and outputs.keys() >= plain.keys():
            changed = {name: to_float64(outputs[name]) for name in plain}
            if _deviation(changed, plain) > FAITHFUL:
                return True
    return False


def _rounds_in_sight(evaluations: Evaluations, unit: float = FINE) -> bool:
    """Tell whether outputs change if the roundings of the shadow's numpy operations are perturbed.

    `unit` is the relative size of the perturbations.
    """
    copies = as_float32(evaluations.wide)
    plain = evaluations.outputs(copies, shadow=True)
    moved = evaluations.outputs(noisy(copies, SeededRng(0), unit), shadow=True)
    if plain is None or moved is None:
        return False
    return any(not np.array_equal(moved[name], plain[name], equal_nan=True) for name in plain)


def _small_integers(inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Return the inputs with each float x replaced by the integer nearest to 4 x."""
    return {
        name: np.rint(4.0 * to_float64(array)).astype(np.float32)
        if dtype_name(array.dtype) in FLOAT_LIMITS
        else array
        for name, array in inputs.items()
    }


def _round32(values: Float64Array) -> Float64Array:
    with np.errstate(all="ignore"):
        rounded: Float64Array = values.astype(np.float32).astype(np.float64)
    return rounded
