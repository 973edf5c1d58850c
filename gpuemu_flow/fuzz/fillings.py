"""Make values that meet, or break, a condition on an input, but otherwise vary as much as possible.

A condition found among generated cases may only be correlated with the true one. For example, a row
with a wide range also has negative elements. So an input of a failing case is filled with new
values that meet or break the condition, each time with different signs, offsets and patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.cases.facts import INFINITE, CaseFacts
from gpuemu_flow.cases.measured import measures_of
from gpuemu_flow.cases.predicates import Predicate
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.types import Case, InputSpec

Rows = NDArray[np.float64]
Make = Callable[[Rows, float], Iterator[Rows]]

_FREE_KINDS = ("", "positive")
"""Kinds of inputs whose elements may be chosen independently."""

_EXCHANGED_KINDS = (*_FREE_KINDS, "lengths", "indices")
"""Kinds of inputs whose elements may get the values of other elements."""

_MARKED: dict[str, Callable[[Rows], NDArray[np.bool_]]] = {
    "zero": lambda rows: rows == 0,
    "negative": lambda rows: rows < 0,
    "nan": np.isnan,
    "infinite": np.isinf,
    "not_finite": lambda rows: ~np.isfinite(rows),
}
"""Conditions that a single element can meet, by name; each returns the mask of the elements."""


def fillings(
    predicate: Predicate, case: Case, given: NDArray[Any], seed: int
) -> Iterator[tuple[bool, NDArray[Any]]]:
    """Yield values for the input that a condition is about.

    Parameters
    ----------
    predicate : Predicate
        The condition. If it is not about the elements of one input, nothing is yielded.
    case : Case
    given : ndarray
        The case's input, whose shape, layout and dtype are kept.
    seed : int

    Yields
    ------
    inside : bool
        True if the values meet the condition.
    values : ndarray
    """
    bound = predicate.value
    if predicate.kind == "holds" and bound in _MARKED:
        yield from _exchanged(_MARKED[str(bound)], predicate.subject, case, given, seed)
        return
    make = _MAKERS.get(predicate.kind)
    if make is None or not isinstance(bound, (int, float)) or abs(bound) >= INFINITE:
        return
    spec = next((spec for spec in case.inputs if spec.name == predicate.subject), None)
    if spec is None or not given.size or not _is_free(spec, case):
        return
    width = given.shape[-1] if given.ndim else 1
    draws = SeededRng(seed).derive("fillings").f64(given.size)
    for rows in make(np.asarray(draws).reshape(-1, width), float(bound)):
        values = _fitted(rows.reshape(given.shape), given, spec)
        facts = CaseFacts({}, {}, {}, frozenset(), measures_of(predicate.subject, values))
        yield predicate.holds(facts), values


def _exchanged(
    is_marked: Callable[[Rows], NDArray[np.bool_]],
    subject: str,
    case: Case,
    given: NDArray[Any],
    seed: int,
) -> Iterator[tuple[bool, NDArray[Any]]]:
    """Yield copies of an input without any marked element, and copies with a single one.

    `is_marked` returns the mask of the marked elements, which are those that meet a condition. They
    are replaced by unmarked elements of the same input, so that the input keeps any bounds that are
    not known here.

    Yields
    ------
    inside : bool
        True for a copy with a single marked element.
    values : ndarray
    """
    spec = next((spec for spec in case.inputs if spec.name == subject), None)
    if spec is None or _others_need(spec, case):
        return
    rule = spec.rule
    if rule is not None:
        bound = rule.relation or rule.total is not None or rule.generate or rule.optional
        if bound or rule.kind not in _EXCHANGED_KINDS:
            return
    flat = given.reshape(-1)
    marked = is_marked(flat.astype(np.float64))
    if not marked.any() or marked.all():
        return
    draws = SeededRng(seed).derive("exchanged").f64(2 * flat.size)
    plain = flat[~marked]
    for half in (draws[: flat.size], draws[flat.size :]):
        without = flat.copy()
        picked = (np.asarray(half) * plain.size).astype(int)
        without[marked] = plain[picked[marked]]
        yield False, _laid_out(without, given)
        one = without.copy()
        one[int(half[0] * flat.size)] = flat[marked][0]
        yield True, _laid_out(one, given)


def _laid_out(flat: NDArray[Any], given: NDArray[Any]) -> NDArray[Any]:
    values = np.array(given)
    values[...] = flat.reshape(given.shape)
    return values


def _others_need(spec: InputSpec, case: Case) -> bool:
    """Tell whether the values of another input depend on the values of this input."""
    rules = [other.rule for other in case.inputs if other.rule is not None]
    return any(spec.name in (rule.of, rule.other) for rule in rules)


def _is_free(spec: InputSpec, case: Case) -> bool:
    """Tell whether each element of an input may have any value within its bounds."""
    rule = spec.rule
    if _others_need(spec, case):
        return False
    if rule is None:
        return True
    whole = rule.kind not in _FREE_KINDS or rule.concerns_whole or rule.values or rule.choices
    bounds = (rule.low, rule.high)
    return not whole and not rule.optional and not any(isinstance(b, str) for b in bounds)


def _fitted(rows: Rows, given: NDArray[Any], spec: InputSpec) -> NDArray[Any]:
    """Make new values acceptable for an input.

    Parameters
    ----------
    rows : ndarray of float64
        The new values. They are clipped to the input's bounds.
    given : ndarray
        The input's present array. The result has the same dtype and layout.
    spec : InputSpec
        The description of the input, with its bounds.
    """
    low, high = -np.inf, np.inf
    limits = FLOAT_LIMITS.get(dtype_name(given.dtype) or "")
    if limits is not None:
        low, high = -limits.max, limits.max
    elif given.dtype.kind in "iu":
        rows = np.where(rows < 0, np.floor(rows), np.ceil(rows))
        low, high = float(np.iinfo(given.dtype).min), float(np.iinfo(given.dtype).max)
    if spec.rule is not None and spec.rule.kind == "positive":
        rows = np.abs(rows)
    rule_bounds = (spec.rule.low, spec.rule.high) if spec.rule is not None else (None, None)
    for least, most in ((spec.low, spec.high), rule_bounds):
        low = max(low, float(least)) if least is not None else low
        high = min(high, float(most)) if most is not None else high
    values = np.array(given)
    values[...] = np.clip(rows, low, high).astype(given.dtype)
    return values


def _sparse(draws: Rows, one: float, rest: Rows) -> Rows:
    """Return a copy of `rest` in which one element of each row is set to the value `one`.

    The first column of `draws`, with values in [0, 1), chooses the element of each row.
    """
    rows: Rows = rest.copy()
    rows[np.arange(len(rows)), (draws[:, 0] * rows.shape[1]).astype(int)] = one
    return rows


def _signs(draws: Rows) -> Rows:
    signs: Rows = np.ones_like(draws)
    signs[draws * 1e4 % 1.0 < 0.5] = -1.0
    return signs


def _magnitudes(draws: Rows, bound: float) -> Iterator[Rows]:
    beyond, within = bound * (1.05 + draws), bound * 0.9 * draws
    for sign in (1.0, -1.0, _signs(draws)):
        yield sign * beyond
        yield sign * within
    yield _sparse(draws, 1.5 * bound, within)
    yield np.full_like(draws, 0.9 * bound)


def _largest(draws: Rows, bound: float) -> Iterator[Rows]:
    size = abs(bound) or 1.0
    below = bound - size * (0.1 + draws)
    yield bound + size * (0.05 + draws)
    yield _sparse(draws, bound + 0.5 * size, below)
    yield bound + 10.0 * size * (0.05 + draws)
    yield _sparse(draws, bound + 0.05 * size, bound - 10.0 * size * (0.1 + draws))
    yield below
    yield np.full_like(draws, bound - 0.1 * size)
    yield bound - 10.0 * size * (0.1 + draws)


def _lowest(draws: Rows, bound: float) -> Iterator[Rows]:
    for rows in _largest(draws, -bound):
        yield -rows


def _ranges(draws: Rows, bound: float) -> Iterator[Rows]:
    if draws.shape[1] < 2:
        return
    for spread in (2.0 * bound, 0.4 * bound):
        for least in (0.0, -spread, -0.5 * spread, 10.0 * bound, -10.0 * bound):
            yield least + spread * draws


def _offsets(draws: Rows, bound: float) -> Iterator[Rows]:
    if draws.shape[1] < 2:
        return
    for ratio in (2.0 * bound, 0.3 * bound):
        for mean in (1.0, -1.0, 100.0):
            yield mean + abs(mean) / ratio * 3.46 * (draws - 0.5)  # 3.46: unit standard deviation


def _least_magnitudes(draws: Rows, bound: float) -> Iterator[Rows]:
    wide, narrow = bound * (2.0 + 2.0 * draws), bound * 0.5 * draws
    for sign in (1.0, -1.0, _signs(draws)):
        mixed = sign * wide
        mixed[:1] = (sign * narrow)[:1]
        yield mixed
        yield sign * wide
    yield narrow


def _least_tops(draws: Rows, bound: float) -> Iterator[Rows]:
    size = abs(bound) or 1.0
    below, above = bound - size * draws, bound + size * (0.05 + draws)
    mixed = above.copy()
    mixed[:1] = below[:1]
    yield mixed
    yield below
    yield bound - 10.0 * size * draws
    yield above
    yield _sparse(draws, bound + 0.5 * size, below)
    yield bound + 10.0 * size * (0.05 + draws)


_MAKERS: dict[str, Make] = {
    "magnitude_above": _magnitudes,
    "largest_above": _largest,
    "lowest_below": _lowest,
    "row_range_above": _ranges,
    "row_offset_above": _offsets,
    "row_least_magnitude_below": _least_magnitudes,
    "row_least_top_below": _least_tops,
}
