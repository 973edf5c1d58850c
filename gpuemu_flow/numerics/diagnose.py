"""Explain a failing output: where its errors lie, and what they have in common.

Everything is derived from the output, the reference's output and the inputs of one case. To be fast
for large tensors, only samples of limited size are examined. The failing elements, however, are all
counted, per axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.numerics.diagnose_moves import conditions, moves
from gpuemu_flow.numerics.diagnose_places import places
from gpuemu_flow.numerics.diagnose_values import line_relations, special_values, values
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, to_float64
from gpuemu_flow.numerics.finding import Evidence, Finding
from gpuemu_flow.numerics.judge import AffineBound, BoolArray, Bound, Rules, judge, judge_integers
from gpuemu_flow.types import Tolerance

__all__ = ["MOST_FINDINGS", "Finding", "diagnose", "failing_elements"]

MOST_FINDINGS = 3

JUDGED_AT_ONCE = 1 << 16


def diagnose(
    actual: NDArray[Any],
    expected: NDArray[Any],
    failing: BoolArray | Tolerance | Bound,
    *,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    rules: Rules | None = None,
    limit: int = MOST_FINDINGS,
) -> tuple[Finding, ...]:
    """Describe the wrong elements of one output, likeliest explanation first.

    >>> expected = np.arange(1.0, 13.0).reshape(3, 4)
    >>> [finding.sentence for finding in diagnose(2 * expected, expected, Tolerance(0.0, 1e-6))]
    ['actual = 2.000 × expected', 'wrong everywhere (12 of 12 elements)']
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape or not actual.size:
        return ()
    if dtype_name(actual.dtype) is None or dtype_name(expected.dtype) is None:
        return ()
    if isinstance(failing, Tolerance):
        failing = AffineBound(failing.atol, failing.rtol)
    if isinstance(failing, np.ndarray):
        mask = np.asarray(failing, bool)
    else:
        mask = failing_elements(
            actual, expected, failing, rules or _default_rules(actual, expected)
        )
    if mask.shape != actual.shape:
        return ()
    known = {n: a for n, a in (inputs or {}).items() if dtype_name(a.dtype) is not None}
    evidence = Evidence(actual, expected, mask, known)
    if not evidence.count:
        return ()
    with np.errstate(all="ignore"):
        return _likeliest((aspect(evidence) for aspect in _ASPECTS), limit)


def _default_rules(actual: NDArray[Any], expected: NDArray[Any]) -> Rules:
    wider = expected.dtype != actual.dtype
    return Rules(clip=FLOAT_LIMITS.get(dtype_name(actual.dtype) or "") if wider else None)


def failing_elements(
    actual: NDArray[Any], expected: NDArray[Any], bound: Bound, rules: Rules
) -> BoolArray:
    """Return the mask of the elements that fail, as the comparison judges them."""
    flat_actual, flat_expected = actual.reshape(-1), expected.reshape(-1)
    mask = np.empty(actual.size, bool)
    exact = actual.dtype == expected.dtype and actual.dtype.kind in "iu"
    for start in range(0, actual.size, JUDGED_AT_ONCE):
        where = slice(start, min(start + JUDGED_AT_ONCE, actual.size))
        a, e = flat_actual[where], flat_expected[where]
        if exact:
            mask[where] = judge_integers(a, e, bound, where).failed
        else:
            mask[where] = judge(to_float64(a), to_float64(e), bound, where, rules).failed
    return mask.reshape(actual.shape)


def _of_finite_elements(evidence: Evidence) -> list[Finding]:
    """Find what the failing elements with finite values have in common.

    The likelihood of each finding is multiplied by the share of these elements among all failing
    elements.
    """
    share = len(evidence.finite) / len(evidence.failing)
    found = [*values(evidence), *line_relations(evidence), *moves(evidence)]
    return [replace(finding, likelihood=finding.likelihood * share) for finding in found]


# At most one finding of each: NaN and Inf, other wrong values, their places, their conditions.
_ASPECTS: tuple[Callable[[Evidence], Iterable[Finding]], ...] = (
    special_values,
    _of_finite_elements,
    places,
    conditions,
)


def _likeliest(aspects: Iterable[Iterable[Finding]], limit: int) -> tuple[Finding, ...]:
    """Return the likeliest finding of each group in `aspects`, at most `limit`, likeliest first.

    A group holds the findings on one aspect of the errors, such as the places where they occur.
    """
    best = [
        max(found, key=lambda finding: finding.likelihood) for found in map(list, aspects) if found
    ]
    return tuple(sorted(best, key=lambda finding: -finding.likelihood)[:limit])
