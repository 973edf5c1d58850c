"""Gradients as outputs: names, the outputs' cotangents, and elements without a derivative."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.numerics.contract import GRADIENT_PREFIX, PARAMETERS, Mask
from gpuemu_flow.numerics.contract_views import mask_of
from gpuemu_flow.numerics.dtypes import Float64Array, to_float64
from gpuemu_flow.numerics.evaluations import Evaluate, Evaluations
from gpuemu_flow.numerics.judge import BoolArray
from gpuemu_flow.numerics.perturb import FLOAT32_UNIT, map_floats, widen
from gpuemu_flow.numerics.rng import SeededRng

Array = NDArray[Any]
Arrays = Mapping[str, Array]

_STEPS = (2, 8)
"""Cotangents are quarters from 0.5 to 1.75: every float format holds them, and sums of products
with them are exact as long as the other factors are. None is negative, so that the gradient at |x|
shows the sum of the magnitudes where it is a sum of products; see `measure.ErrorMeasurement`."""
_NUDGE = 4.0
"""Number of roundings by which inputs are perturbed to find where a gradient jumps."""
_VANISHED = 2.0**-50
"""Share of the usual size below which float64 may give exactly 0 for a sum that cancels."""
_PAIRS = 3
"""Number of directions of such perturbations. For each direction, inputs are also perturbed in the
opposite direction, since only one of the two crosses a kink."""


def gradient_name(of: str) -> str:
    return GRADIENT_PREFIX + of


def is_of_parameter(name: str) -> bool:
    """Tell whether an output is the gradient of a module's parameter."""
    return name.startswith(f"{GRADIENT_PREFIX}{PARAMETERS}.")


def is_gradient(name: str) -> bool:
    """Tell from an output's name whether the output is a gradient. Call it only for a program that
    returns gradients."""
    return name.startswith(GRADIENT_PREFIX)


def input_of(name: str) -> str:
    return name.removeprefix(GRADIENT_PREFIX)


class _Moving(Struct, frozen=True):
    rng: SeededRng
    unit: float


_moving: _Moving | None = None


class MovedCotangents:
    """The reference, differentiated with cotangents perturbed by one rounding. It is used to
    measure a tolerance. If equal cotangents cancel, the reference may return exactly 0, but a
    correct op may return the rounding error of the cancelled terms. Perturbed inputs do not show
    this error."""

    def __init__(self, evaluate: Any, seed: int, unit: float) -> None:
        self._evaluate = evaluate
        self._moving = _Moving(SeededRng(seed).derive("gradients/cotangents"), 2.0 * unit)

    @property
    def has_source(self) -> bool:
        return bool(self._evaluate.has_source)

    def __call__(self, inputs: Arrays, *, shadow: bool = False, **options: Any) -> Arrays:
        global _moving  # noqa: PLW0603 - the reference's runner reaches it by this module only
        before, _moving = _moving, None if shadow else self._moving
        try:
            outputs: Arrays = self._evaluate(inputs, shadow=shadow, **options)
        finally:
            _moving = before
        return outputs


@functools.lru_cache(maxsize=16)
def _steps(name: str, shape: tuple[int, ...]) -> Float64Array:
    rng = SeededRng(0).derive(f"cotangent/{name}/{shape}")
    size = int(np.prod(shape, dtype=np.int64))
    steps: Float64Array = (rng.ranges(size, *_STEPS) / 4.0).reshape(shape)
    steps.flags.writeable = False
    return steps


def cotangent(
    name: str, shape: tuple[int, ...], mask: Mapping[str, Any] | None, inputs: Arrays
) -> Float64Array:
    """Return the cotangent of an output, the same for an op and its reference."""
    values = _steps(name, shape)
    if _moving is not None:
        shares = 2.0 * _moving.rng.f64(values.size).reshape(shape) - 1.0
        # Arithmetic on arrays without dims returns numpy scalars, which PyTorch does not convert.
        values = np.asarray(values * (1.0 + _moving.unit * shares))
    if mask is None or mask["input"] not in inputs:
        return values
    test = Mask(**{**mask, "axes": tuple(mask["axes"])})
    return np.where(mask_of(test, inputs, shape), values, 0.0)


class Excused(Struct, frozen=True):
    """Elements of a gradient that must not fail although they differ from the reference's."""

    right: BoolArray  # elements that lie between the reference's gradients on both sides of a kink
    unjudged: BoolArray  # elements on which no verdict is possible

    def __bool__(self) -> bool:
        return bool(self.right.any() or self.unjudged.any())


class Kinks:
    """Elements of a case's gradients that jump if the inputs change by a few roundings. Several
    values of such an element are correct: the derivative of relu at 0 may be any value from 0 to 1,
    and equal elements may share the gradient of their maximum in any way. Nothing is evaluated
    before it is needed."""

    def __init__(
        self, evaluate: Evaluate, inputs: Arrays, expected: Arrays, seed: int, unit: float
    ) -> None:
        self._evaluate = evaluate
        self._inputs = inputs
        self._expected = expected
        self._seed = seed
        self._unit = unit * _NUDGE
        self._nudges: list[Arrays] | None = None

    def excuse(self, name: str, actual: Array) -> Excused:
        """Find elements of a gradient that are right, or impossible to judge, because of a kink.

        The reference is also evaluated on inputs perturbed by a few roundings. The *jump* of an
        element is the largest change of its gradient that this causes.

        A real element is right in two cases:

        - It has a jump, and lies between the least and the greatest value that the reference gave.
        - The reference gives exactly 0, and the element is tiny compared with the terms that the
          gradient sums.

        An element is not judged in three cases:

        - Its error is at most twice the largest jump of all elements with the same input value, or
          that jump is infinite. If many elements share a maximum, a perturbation changes the
          gradient of only one or two of them.
        - Its input is NaN or infinite, where no derivative exists.
        - It is NaN, and NaN or infinite inputs may be the cause; see `_without_derivative`.
        """
        before, given = _as_wide(self._expected[name]), _as_wide(actual)
        jump, right = np.zeros(before.shape), np.zeros(before.shape, bool)
        low, high = before.real.copy(), before.real.copy()
        for outputs in self._nudged_outputs():
            moved = outputs.get(name)
            if moved is None or moved.shape != before.shape:
                continue
            now = _as_wide(moved)
            jump = np.maximum(jump, _change(before, now))
            low, high = np.fmin(low, now.real), np.fmax(high, now.real)
        if given.dtype.kind != "c":
            right = np.isfinite(given) & (jump > 0.0) & (low <= given) & (given <= high)
            right |= (before == 0.0) & (np.abs(given) <= _VANISHED * self._usual(name))
        values = self._inputs.get(input_of(name))
        unknown: BoolArray | bool = self._without_derivative(before, given)
        if values is not None and values.shape == jump.shape:
            jump = _largest_of_equals(values, jump)
            unknown = unknown | ~np.isfinite(_as_wide(values))
        with np.errstate(all="ignore"):
            explained = np.abs(given - before) <= 2.0 * jump
        unjudged: BoolArray = (jump > 0.0) & (explained | np.isinf(jump)) | unknown
        return Excused(right, unjudged)

    def _without_derivative(self, before: Array, given: Array) -> BoolArray | bool:
        """Return a mask of the gradient's elements that may be NaN because of NaN or Inf inputs.
        Elements that are NaN in the reference's gradient `before` are marked. If an input holds
        NaN, elements that are NaN in the op's gradient `given` are marked, too: the maximum of a
        row with a NaN has no derivative, so that ops differ. For example, one gives NaN for all
        elements of the row, and another gives 1 for the element that is NaN, and 0 for the rest.
        The result is False if all inputs are finite."""
        wide = [_as_wide(array) for array in self._inputs.values() if array.dtype.kind != "b"]
        if all(np.isfinite(array).all() for array in wide):
            return False
        unknown: BoolArray = np.isnan(before)
        return unknown | np.isnan(given) if any(np.isnan(a).any() for a in wide) else unknown

    def _usual(self, name: str) -> float:
        """Estimate the size of a gradient's terms. The estimate is the larger of two magnitudes:
        that of the gradient's largest element, and the quotient of the largest output and the
        largest element of the gradient's input."""
        outputs = [array for n, array in self._expected.items() if not is_gradient(n)]
        values = self._inputs.get(input_of(name))
        largest = 0.0 if values is None else _largest(values)
        ratio = max(map(_largest, outputs), default=0.0) / largest if largest else 0.0
        return max(_largest(self._expected[name]), ratio)

    def _nudged_outputs(self) -> list[Arrays]:
        """Return the reference's outputs on perturbed inputs, without failed evaluations."""
        if self._nudges is None:
            evaluations = Evaluations(self._evaluate, self._inputs)
            inputs64 = widen(self._inputs)
            found = [
                evaluations.outputs(self._nudged(inputs64, pair, sign))
                for pair in range(_PAIRS)
                for sign in (1.0, -1.0)
            ]
            self._nudges = [outputs for outputs in found if outputs is not None]
        return self._nudges

    def _nudged(self, inputs64: Arrays, pair: int, sign: float) -> Arrays:
        """Return the inputs with each finite float changed by a few rounding errors. A zero changes
        by as much as a number of the median magnitude. The directions depend on `pair`; a `sign` of
        -1 reverses them."""
        rng = SeededRng(self._seed).derive(f"gradients/{pair}")

        def change(values: Float64Array) -> Float64Array:
            steps = rng.f64(values.size).reshape(values.shape) - 0.5
            steps += np.copysign(0.5, steps)
            sizes = np.abs(values)
            known = np.isfinite(values)
            others = sizes[known & (values != 0.0)]
            usual = float(np.median(others)) if others.size else 1.0
            step = sign * self._unit * steps * np.where(values == 0.0, usual, sizes)
            return np.where(known, values + np.where(known, step, 0.0), values)

        return map_floats(inputs64, change)


def unit_of(dtype: str) -> float:
    """Return the unit roundoff of the arithmetic in which ops on a dtype compute."""
    return 2.0**-53 if dtype == "float64" else FLOAT32_UNIT


def _as_wide(values: Array) -> Array:
    return values.astype(np.complex128) if values.dtype.kind == "c" else to_float64(values)


def _largest(values: Array) -> float:
    if values.dtype.kind == "b":
        return 1.0
    sizes = np.abs(_as_wide(values))
    return float(sizes[np.isfinite(sizes)].max(initial=0.0))


def _change(before: Array, now: Array) -> Float64Array:
    """Return the size of each change; infinite where one of the two values is not finite."""
    with np.errstate(all="ignore"):
        change = np.abs(now - before)
    same = (now == before) | (np.isnan(now) & np.isnan(before))
    return np.where(same, 0.0, np.where(np.isfinite(change), change, np.inf))


def _largest_of_equals(values: Array, jump: Float64Array) -> Float64Array:
    """Return, for each element, the largest jump of all elements with the same input value."""
    _, groups = np.unique(_as_wide(values).reshape(-1), return_inverse=True)
    groups = groups.reshape(-1)
    largest = np.zeros(int(groups.max(initial=0)) + 1)
    np.maximum.at(largest, groups, jump.reshape(-1))
    raised: Float64Array = largest[groups].reshape(jump.shape)
    return raised
