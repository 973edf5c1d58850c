"""Collect facts about a case and its inputs, such as the largest value of each input.

The search for the cause of failures compares these facts between failing and passing cases.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.cases.conditions import sizes_of
from gpuemu_flow.cases.facts import ANY, ELEMENTS, INFINITE, CaseFacts, Key
from gpuemu_flow.cases.generate import input_values
from gpuemu_flow.numerics.dtypes import dtype_name, to_float64
from gpuemu_flow.numerics.layouts import lay_out
from gpuemu_flow.types import DTYPES, Case

MOST_ROWS = 4096
MOST_COLUMNS = 4096
"""Largest numbers of rows, and of elements of a row, that are measured."""


def facts_of(case: Case) -> CaseFacts:
    """Return the facts about a case; inputs whose values are not known yet are not measured."""
    marks: set[Key] = set()
    measures: dict[Key, float] = {}
    for spec in case.inputs:
        if not spec.has_values:
            continue
        values = input_values(case, spec)
        if not lay_out(values, spec.layout).flags.c_contiguous:
            marks.add((spec.name, "scattered"))
        if values.size and dtype_name(values.dtype) is not None:
            found, measured = _of_input(values, DTYPES[spec.dtype].kind)
            marks |= {(spec.name, mark) for mark in found}
            measures.update({(spec.name, name): value for name, value in measured.items()})
    if sum(DTYPES[spec.dtype].kind == "float" for spec in case.inputs) > 1:
        floats = {spec.name for spec in case.inputs if DTYPES[spec.dtype].kind == "float"}
        marks |= {(ANY, mark) for name, mark in marks if name in floats and mark != "scattered"}
        for name in ("largest", "lowest", "magnitude"):
            each = [v for (of, what), v in measures.items() if what == name and of in floats]
            if each:
                measures[ANY, name] = min(each) if name == "lowest" else max(each)
    sizes = sizes_of(case)
    if len(sizes) > 1:
        sizes[ELEMENTS] = max((math.prod(spec.shape) for spec in case.inputs), default=0)
    return CaseFacts(
        sizes,
        {spec.name: spec.layout for spec in case.inputs},
        {spec.name: spec.strategy for spec in case.inputs},
        frozenset(marks),
        measures,
    )


def _of_input(values: NDArray[Any], kind: str) -> tuple[set[str], dict[str, float]]:
    """Return marks (names of properties) and measures of one input.

    `kind` is the kind of the input's dtype, such as ``float``.
    """
    rows = _rows(values)
    if kind == "bool":
        return _of_truths(rows, single=not values.ndim), {}
    if values.ndim:
        return _of_values(rows, floating=kind == "float")
    value = float(rows[0, 0])
    if np.isnan(value):
        return {"is_nan"}, {}
    return ({"is_zero"} if value == 0 else set()), {
        "value": float(np.clip(value, -INFINITE, INFINITE))
    }


def _of_truths(rows: NDArray[np.float64], *, single: bool) -> set[str]:
    """Return the marks (names of properties) of an input of booleans.

    Parameters
    ----------
    rows : array
        The input's values, 0 or 1, as rows along its last axis.
    single : bool
        True if the input is a single value, an array without axes.
    """
    holds = rows != 0
    if single:
        return {"is_true" if holds.all() else "is_false"}
    found = {
        "true": holds.any(),
        "false": not holds.all(),
        "true_row": holds.all(axis=1).any(),
        "false_row": (~holds).all(axis=1).any(),
    }
    return {name for name, there in found.items() if there}


def measures_of(name: str, values: NDArray[Any]) -> dict[Key, float]:
    """Return the measures of an input with the given values, such as its largest value."""
    dtype = dtype_name(values.dtype)
    if not values.size or dtype is None:
        return {}
    _, found = _of_input(values, DTYPES[dtype].kind if dtype in DTYPES else "float")
    return {(name, measure): value for measure, value in found.items()}


def _rows(values: NDArray[Any]) -> NDArray[np.float64]:
    width = values.shape[-1] if values.ndim else 1
    return to_float64(values.reshape(-1, max(width, 1))[:MOST_ROWS, :MOST_COLUMNS])


def _of_values(rows: NDArray[np.float64], *, floating: bool) -> tuple[set[str], dict[str, float]]:
    """Return the marks (names of properties) and the measures of one input.

    Parameters
    ----------
    rows : array
        The input's values, as rows along its last axis.
    floating : bool
        True if the input has a float dtype.
    """
    marks: set[str] = set()
    finite = np.isfinite(rows)
    values = rows[finite]
    if floating:
        marks |= {name for name, holds in _special(rows).items() if holds}
    if (rows < 0).any():
        marks.add("negative")
    measures: dict[str, float] = {}
    known = np.clip(rows[~np.isnan(rows)], -INFINITE, INFINITE)
    if known.size:
        measures["largest"] = float(known.max())
        measures["lowest"] = float(known.min())
        measures["magnitude"] = float(np.abs(known).max())
    whole = rows[finite.all(axis=1)]
    if not floating or not whole.size:
        marks |= _of_integers(rows) if not floating else set()
        return marks, measures
    with np.errstate(all="ignore"):
        top, size = whole.max(axis=1), np.abs(whole).max(axis=1)
        centre, spread = np.abs(whole.mean(axis=1)), whole.std(axis=1)
        measures["row_least_top"] = float(top.min())
        measures["row_least_magnitude"] = float(size.min())
        measures["row_range"] = float(np.ptp(whole, axis=1).max())
        if whole.shape[1] > 1:
            ratio = centre / np.maximum(spread, 1e-30 * (1.0 + centre))
            measures["row_offset"] = float(ratio.max())
            ordered = np.sort(whole, axis=1)
            if np.equal(ordered[:, 1:], ordered[:, :-1]).any():
                marks.add("ties")
            if np.equal(ordered[:, -1], ordered[:, -2]).any():
                marks.add("tied_top")
            if np.equal(ordered[:, 0], ordered[:, -1]).any():
                marks.add("constant_row")
    if (top < 0).any():
        marks.add("negative_row")
    if (size == 0).any():
        marks.add("zero_row")
    if (values == 0).any():
        marks.add("zero")
    return marks, measures


def _of_integers(rows: NDArray[np.float64]) -> set[str]:
    """Return the marks (names of properties) of an input of integers: zeros and duplicates."""
    marks: set[str] = set()
    if (rows == 0).any():
        marks.add("zero")
    ordered = np.sort(rows, axis=1)
    if np.equal(ordered[:, 1:], ordered[:, :-1]).any():
        marks.add("duplicates")
    return marks


def _special(rows: NDArray[np.float64]) -> dict[str, bool]:
    nan, infinite = np.isnan(rows), np.isinf(rows)
    return {
        "nan": bool(nan.any()),
        "infinite": bool(infinite.any()),
        "plus_inf": bool((rows == np.inf).any()),
        "minus_inf": bool((rows == -np.inf).any()),
        "minus_inf_row": bool((rows == -np.inf).all(axis=1).any()),
        "not_finite": bool(nan.any() or infinite.any()),
    }
