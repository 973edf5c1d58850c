"""Evaluate the reference for a tolerance: in float64, or in another dtype that it accepts."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.model.errors import FlowError
from gpuemu_flow.model.types import OWN, SINGLE, WIDE, dtypes_to_try
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, FloatLimits, dtype_name
from gpuemu_flow.numerics.operand import Rounding
from gpuemu_flow.numerics.perturb import Arrays, widen
from gpuemu_flow.numerics.single import Single, bare, single, staying_single

REFUSED = "reference-failed"
"""Slug of the error of a reference that gave no outputs."""


class Evaluate(Protocol):
    """The reference as a function, which computes in float64 or, if `shadow` is true, in float32.
    The reference in float32 is called its shadow. Float inputs are float64 arrays; for the shadow,
    they are float32 arrays (see `single`). Other inputs are passed unchanged. The reference must
    not modify its inputs. A failing evaluation raises `FlowError` ``reference-failed``. If a
    correct op may round values to a narrower type, the shadow takes an argument ``rounding:
    Rounding``, and rounds them, too."""

    def __call__(self, inputs: Arrays, *, shadow: bool = False) -> Arrays: ...


class Evaluations:
    """An `Evaluate` with counts of its calls and failures, and the dtypes that it accepts. The
    reference's *shadow* is the same function, computed in float32."""

    def __init__(self, evaluate: Evaluate, native: Arrays) -> None:
        self._evaluate = evaluate
        self.inputs = native
        self._native = {name: array.dtype for name, array in native.items()}
        self._kinds = dtypes_to_try(widened=True, single=True)
        """Dtypes to try; once the reference has given outputs, only the dtype that it accepted."""
        self._takes_single = True
        self.count = 0
        self.succeeded = 0
        self.failed = 0
        self.reason = ""
        self.makes_arrays = False

    def on(self, inputs: Arrays) -> Evaluations:
        """Return the evaluations of the same reference on other inputs."""
        return Evaluations(self._evaluate, inputs)

    @functools.cached_property
    def wide(self) -> Arrays:
        """Return the inputs in float64."""
        return widen(self.inputs)

    @functools.cached_property
    def plain(self) -> Arrays | None:
        """Return the outputs on the inputs as they are; None if the evaluation failed."""
        outputs = self.outputs(self.wide)  # copied: another call may overwrite them
        return outputs and {name: array.copy() for name, array in outputs.items()}

    @property
    def takes_float64(self) -> bool:
        """Tell whether the reference takes float64; assumed until it has accepted another dtype."""
        return WIDE in self._kinds

    @property
    def own_format(self) -> FloatLimits | None:
        """Return the coarsest float format among the inputs that the reference is called with. This
        is only for a reference that rejects float64 inputs. The result is None if the reference
        takes float64, or has no float inputs."""
        if self.takes_float64:
            return None
        if SINGLE in self._kinds:
            return FLOAT_LIMITS["float32"]
        names = [dtype_name(dtype) for dtype in self._native.values()]
        formats = [FLOAT_LIMITS[name] for name in names if name in FLOAT_LIMITS]
        return max(formats, key=lambda fmt: fmt.eps, default=None)

    def outputs(
        self, inputs: Arrays, *, shadow: bool = False, rounding: Rounding | None = None
    ) -> Arrays | None:
        """Return the reference's outputs, or None if the evaluation failed. The reference is
        tried in each of `dtypes_to_try`. After one has succeeded, later calls use only this
        dtype. With `shadow`, the reference computes in float32 instead, and applies `rounding`
        if it is given."""
        if shadow:
            return self._shadow_outputs(inputs, rounding)
        for kind in self._kinds:
            outputs = self._outputs(self._converted(inputs, kind))
            if outputs is not None:
                self._kinds = (kind,)
                return outputs
        return None

    def _shadow_outputs(self, inputs: Arrays, rounding: Rounding | None) -> Arrays | None:
        """Return the shadow's outputs on float32 inputs; None if the evaluation failed. The inputs
        are passed as `Single` arrays, so that arithmetic with them stays in float32. If the shadow
        fails on these, plain arrays are passed."""
        if self._takes_single:
            kept = single(inputs)
            with staying_single(kept) as making:
                outputs = self._outputs(kept, shadow=True, rounding=rounding)
            self.makes_arrays = self.makes_arrays or making.count > 0
            if outputs is not None or any(isinstance(array, Single) for array in inputs.values()):
                return outputs
        outputs = self._outputs(inputs, shadow=True, rounding=rounding)
        if outputs is not None:
            self._takes_single = False
        return outputs

    def own_outputs(self, inputs: Arrays) -> Arrays | None:
        """Return the outputs on inputs of the case's own dtypes; None if that failed."""
        return self._outputs(self._converted(inputs, OWN))

    def refuse(self, reason: str) -> None:
        """Count the latest evaluation as failed after all, for the given `reason`."""
        self.succeeded -= 1
        self.failed += 1
        self.reason = reason

    def _outputs(
        self, inputs: Arrays, *, shadow: bool = False, rounding: Rounding | None = None
    ) -> Arrays | None:
        self.count += 1
        options: dict[str, Any] = {} if rounding is None else {"rounding": rounding}
        try:
            outputs = self._evaluate(inputs, shadow=shadow, **options)
        except FlowError as error:
            if any(problem.slug != REFUSED for problem in error.problems):
                raise  # no worker, for example, which says nothing about the reference
            self.failed += 1
            self.reason = str(error)
            return None
        self.succeeded += 1
        return {name: bare(array) for name, array in outputs.items()}

    def _converted(self, inputs: Arrays, kind: str | None) -> Mapping[str, NDArray[Any]]:
        if kind == WIDE:
            return inputs
        with np.errstate(all="ignore"):
            return {
                name: array.astype(np.float32 if kind == SINGLE else self._native[name])
                if array.dtype == np.float64
                else array
                for name, array in inputs.items()
            }


def on_each(evaluate: Evaluate, samples: Iterable[Arrays]) -> list[Evaluations]:
    """Return the evaluations of a reference on each of several inputs."""
    return [Evaluations(evaluate, inputs) for inputs in samples]


def same_outputs(one: Arrays, other: Arrays) -> bool:
    """Tell whether two evaluations gave equal values, and NaN in the same places."""
    return all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)
