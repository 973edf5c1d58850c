"""Suggest settings under which a failed case would pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, to_float64
from gpuemu_flow.numerics.operand import FLOAT32, INPUT, TENSOR_CORE, rounding_for
from gpuemu_flow.types import Case, CheckResult, FailureKind, Verdict

FEW = 0.25
"""Maximum share of wrong elements for which another precision is tried. Each try takes a separate
measurement, and an op that is wrong nearly everywhere does not merely round too early."""

FAR = 1e18
"""Magnitude beyond which a product of two inputs is near the limit of float32."""

DRAWING_FAR = ("extremes", "special", "large")
"""Strategies that draw values beyond `FAR`; inputs of a request are not drawn."""


def wider_precisions(precision: str, result: CheckResult, case: Case) -> list[str]:
    """Return the wider precisions, narrowest first, under which a failed case might pass."""
    stats = result.stats
    values_only = all(failure.kind is FailureKind.TOLERANCE for failure in result.failures)
    if not values_only or stats.num_exceeding > FEW * stats.count:
        return []
    order = (FLOAT32, TENSOR_CORE, INPUT)
    wider = order[order.index(precision) + 1 :]
    return [name for name in wider if rounding_for(name, case.dtype) is not None]


def precision_note(precision: str, dtype: str) -> str:
    """Return a note that a failed case passes under a wider precision, and what this allows."""
    what = "the result of every step" if precision == INPUT else "operands of matrix products"
    return (
        f'this passes under `precision = "{precision}"`, where {what} may be rounded to {dtype}; '
        "if the op is meant to, set it for this op"
    )


def range_notes(case: Case, inputs: Mapping[str, NDArray[Any]], result: CheckResult) -> list[str]:
    """Suggest a smaller range of inputs, if large inputs may explain elements without verdict."""
    unjudged = result.verdict is Verdict.INCONCLUSIVE and result.stats.num_no_verdict
    if not unjudged or case.dtype == "float64":
        return []
    largest = {
        spec.name: _largest(inputs[spec.name])
        for spec in case.inputs
        if spec.strategy in DRAWING_FAR and not spec.is_generated and spec.name in inputs
    }
    far = [name for name, size in largest.items() if size > FAR]
    if not far:
        return []
    verb = "reaches" if len(far) == 1 else "reach"
    top = max(largest[name] for name in far)
    return [
        f"{_listed(far)} {verb} {top:.3g}, and sums of products of such values may overflow in "
        "float32; a `range` of these inputs, such as [-1e4, 1e4], draws none (`nonfinite = false` "
        "takes out NaN and Inf alone)"
    ]


def _largest(values: NDArray[Any]) -> float:
    if dtype_name(values.dtype) not in FLOAT_LIMITS:
        return 0.0
    sizes = np.abs(to_float64(values))
    return float(sizes[np.isfinite(sizes)].max(initial=0.0))


def _listed(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
