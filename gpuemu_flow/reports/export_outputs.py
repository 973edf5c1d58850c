"""Write the expected values, the tolerances and the comparing code of an exported test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.checked_output import Policy, SpecialInputs
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, FloatLimits, dtype_name, to_float64
from gpuemu_flow.numerics.envelope import Envelope
from gpuemu_flow.numerics.judge import AffineBound
from gpuemu_flow.numerics.tolerances import default_tolerance
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.reports import pytest_template as template
from gpuemu_flow.reports.python_source import literal
from gpuemu_flow.types import Json, Shape, Tolerance

Array = NDArray[Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Expectation:
    """Arguments of `numerics.compare.check_outputs` for an exported test.

    Attributes
    ----------
    expected : mapping of str to ndarray
        The reference's outputs; empty if it gave none.
    tolerance : mapping of dtype name to Tolerance, or Envelope
    policy : Policy
    dtypes : mapping of str to sequence of str
        Dtypes that each output may have; the first dtype decides the tolerance.
    own : mapping of str to Tolerance
        Tolerances of outputs with a separate tolerance.
    """

    expected: Arrays
    tolerance: Mapping[str, Tolerance] | Envelope
    policy: Policy = field(default_factory=Policy)
    dtypes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    own: Mapping[str, Tolerance] = field(default_factory=dict)


class ExpectedOutputs:
    """An `Expectation` in the form that an exported test reads.

    Attributes
    ----------
    outputs : dict
        Maps each output to the names of its tensors, its dtypes and its tolerances, as plain JSON.
    tensors : dict of str to ndarray
        Tensors by name: expected values, allowed errors, masks of elements without a verdict, and
        masks of elements exempt from invariants.
    """

    def __init__(self, expectation: Expectation, inputs: Arrays) -> None:
        self._expectation = expectation
        self._inputs = inputs
        self._special = bool(SpecialInputs(inputs))
        self.tensors: dict[str, Array] = {}
        self.outputs = {
            name: self._output(number, name, values)
            for number, (name, values) in enumerate(expectation.expected.items())
        }

    def comparison(self) -> list[str]:
        """Return the source of the functions that compare the outputs; see `pytest_template`."""
        policy = self._expectation.policy
        outputs = self.outputs.values()
        right = [template.RIGHT_HEAD, template.RIGHT_EXACT, template.RIGHT_VALUES]
        right += [template.RIGHT_CLIPPED] if any(o["largest"] for o in outputs) else []
        right += [template.RIGHT_CLOSE, template.RIGHT_UNJUDGED]
        right += [*_special_rules(policy, special=self._special), "    return right\n"]
        asked = [template.INVARIANTS[n] for n in policy.invariants if n in template.INVARIANTS]
        invariants = template.INVARIANTS_HEAD + "".join(asked) if asked else template.NO_INVARIANTS
        checks = template.CHECK_OUTPUTS
        source = policy.shape_preserved_input
        if source is not None and source in self._inputs and self.outputs:
            first = next(iter(self.outputs))
            shape = literal(list(self._inputs[source].shape))
            checks += f"    assert list(outputs[{literal(first)}].shape) == {shape}\n"
        return [checks, "".join(right), invariants, template.CHECK_SAME]

    def _keep(self, name: str, values: Array) -> str:
        self.tensors[name] = values
        return name

    def _output(self, number: int, name: str, values: Array) -> dict[str, Json]:
        """Return the expected values and the tolerance that the comparison uses for one output."""
        given, own = values, dtype_name(values.dtype) or ""
        dtypes = list(self._expectation.dtypes.get(name) or [own])
        fmt = FLOAT_LIMITS.get(dtypes[0])
        clipped = fmt if fmt is not None and own in FLOAT_LIMITS and own != dtypes[0] else None
        if fmt is None:
            values = _lossless(values, dtypes[0])
        elif clipped is not None:
            wide = to_float64(values)
            values = np.where(np.isinf(wide), wide, np.clip(wide, -clipped.max, clipped.max))
        tolerance = self._expectation.tolerance
        affine, allowed, unjudged = default_tolerance(dtypes[0]), None, None
        if name in self._expectation.own:
            affine = self._expectation.own[name]
        elif isinstance(tolerance, Envelope):
            affine, allowed, unjudged = _of_envelope(tolerance, name, values, affine)
        else:
            affine = tolerance.get(dtypes[0]) or affine
        exempt = self._exempt(given, clipped)
        invariant = affine if allowed is None else default_tolerance(dtypes[0])
        optional = {"allowed": allowed, "unjudged": unjudged}
        if self._expectation.policy.invariants:
            optional["exempt"] = exempt
        kept = {
            key: "" if array is None else self._keep(f"{key}_{number}", array)
            for key, array in optional.items()
        }
        return {
            "values": self._keep(f"expected_{number}", values),
            "dtypes": dtypes,
            "atol": affine.atol,
            "rtol": affine.rtol,
            **kept,
            "largest": clipped.max if clipped is not None else None,
            "has_inf": clipped is None or clipped.has_inf,
            **self._of_invariants(invariant, values.shape, fmt),
        }

    def _of_invariants(
        self, tolerance: Tolerance, shape: Shape, fmt: FloatLimits | None
    ) -> dict[str, Json]:
        """Return the tolerances of the required invariants; see `numerics.invariants`."""
        if not self._expectation.policy.invariants:
            return {}
        rounding = (shape[-1] if shape else 1) * fmt.eps if fmt is not None else 0.0
        sums = max(tolerance.atol, tolerance.rtol, rounding)
        return {"sum_tolerance": sums, "pair": [tolerance.atol, tolerance.rtol]}

    def _exempt(self, expected: Array, clipped: FloatLimits | None) -> Array | None:
        """Return a mask of the elements exempt from invariants; None if there are none.

        `clipped` is the output's float format, if it differs from the dtype of `expected`. Finite
        elements beyond its range are exempt. NaN and Inf are exempt if the inputs hold NaN or Inf.
        See `numerics.checked_output`.
        """
        is_float = dtype_name(expected.dtype) in FLOAT_LIMITS
        if not self._expectation.policy.invariants or not is_float:
            return None
        wide = to_float64(expected)
        excused = np.zeros(expected.shape, bool)
        if clipped is not None:
            over = ~(np.abs(wide) <= clipped.max)
            excused = over if self._special else over & np.isfinite(wide)
        elif self._special:
            excused = ~np.isfinite(wide)
        return excused if excused.any() else None


def _of_envelope(
    envelope: Envelope, name: str, values: Array, otherwise: Tolerance
) -> tuple[Tolerance, Array | None, Array | None]:
    """Convert the ``auto`` tolerance of one output to a form that an exported test can apply.

    Parameters
    ----------
    envelope : Envelope
        The ``auto`` tolerance of the case.
    name : str
        Name of the output.
    values : ndarray
        The output's expected values.
    otherwise : Tolerance
        Returned as the tolerance if each element has its own allowed error.

    Returns
    -------
    Tolerance
        The tolerance of all elements, or `otherwise`.
    ndarray or None
        The allowed error of each element; None if one tolerance holds for all elements.
    ndarray or None
        Mask of the elements without a verdict; None if there are none.
    """
    bound = envelope.full(name)
    where = slice(0, values.size)
    unjudged = bound.no_verdict(where)
    if unjudged is not None:
        unjudged = unjudged.reshape(values.shape) if unjudged.any() else None
    if isinstance(bound, AffineBound):
        return Tolerance(bound.atol, bound.rtol, otherwise.origin), None, unjudged
    if dtype_name(values.dtype) not in FLOAT_LIMITS:
        return Tolerance(0.0, 0.0), None, unjudged
    allowed = bound.tolerance(to_float64(values).reshape(-1), where).reshape(values.shape)
    return otherwise, allowed, unjudged


def _lossless(values: Array, dtype: str) -> Array:
    """Convert values to the dtype of an integer output, unless this would alter a value.

    If a value would be altered, all values are returned in their own dtype.
    """
    target = np.dtype(dtype)
    if values.dtype == target:
        return values
    with np.errstate(all="ignore"):
        cast = values.astype(target)
    return cast if np.array_equal(cast.astype(np.float64), values.astype(np.float64)) else values


def _special_rules(policy: Policy, *, special: bool) -> Iterable[str]:
    """Return the code for NaN and Inf policies other than ``match``; see `judge.Rules`."""
    if policy.nan_policy == "strict" and not special:
        yield "    right &= ~np.isnan(raw)\n"
    if policy.inf_policy == "strict" and not special:
        yield "    right &= ~np.isinf(raw)\n"
    if policy.nan_policy == "ignore":
        fed = " | np.isnan(raw)" if special else ""
        yield f"    right |= np.isnan(e){fed}\n"
    if policy.inf_policy == "ignore":
        fed = " | np.isinf(raw)" if special else ""
        yield f"    right |= (np.isinf(e){fed}) & ~np.isnan(raw) & ~np.isnan(e)\n"
