"""Trivial candidates: outputs, made without computing the op, that its check should reject.

Zeros, a constant, a copy of an input, the previous case's output: if one of them passes although it
is wrong, the oracle is too weak for that op.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.model.types import DTYPES
from gpuemu_flow.numerics.dtypes import numpy_dtype, to_float64

Arrays = Mapping[str, NDArray[Any]]


class TrivialCandidate(Struct, frozen=True):
    """A set of outputs that were made without computing the op."""

    name: str  # ``zeros``, ``constant``, ``copy of <input>`` or ``previous output``
    outputs: Arrays  # Tensors with the shapes and dtypes of the op's outputs


class TrivialResult(Struct, frozen=True):
    """The verdict of the op's own check on one candidate in one case."""

    candidate: str
    seed: int  # the case's seed
    strategy: str  # the case's strategy; reports name it when the candidate passed
    passed: bool


class TriedCandidate(Struct, frozen=True):
    """A candidate, the number of cases in which it is wrong and was tried, and of those that it
    passed, with their strategies."""

    name: str
    tried: int
    passed: int
    strategies: tuple[str, ...]


class TrivialReport(Struct, frozen=True):
    """The results of all candidates over all cases."""

    # Candidates that passed every case on which they were tried: the oracle is too weak
    accepted: tuple[str, ...]
    candidates: tuple[TriedCandidate, ...]


def trivial_candidates(
    inputs: Arrays,
    expected: Arrays,
    *,
    dtypes: Mapping[str, str] | None = None,
    previous: Arrays | None = None,
) -> list[TrivialCandidate]:
    """Return the candidates that are wrong on this case."""
    wanted = dtypes or {}
    right = {
        name: as_dtype(values, wanted.get(name) or values.dtype.name)
        for name, values in expected.items()
    }
    made: dict[str, dict[str, NDArray[Any]] | None] = {
        "zeros": {name: np.zeros_like(values) for name, values in right.items()},
        "constant": {
            name: as_dtype(np.full(values.shape, _median(expected[name])), values.dtype.name)
            for name, values in right.items()
        },
    }
    for source, array in inputs.items():
        made[f"copy of {source}"] = _copy(array, right)
    if previous is not None:
        made["previous output"] = _earlier(previous, right)
    return [
        TrivialCandidate(name, outputs)
        for name, outputs in made.items()
        if outputs is not None and not same_outputs(outputs, right)
    ]


def assess(results: Iterable[TrivialResult]) -> TrivialReport:
    """Combine the results of trivial candidates in many cases. A trivial candidate is a set of
    outputs that was made without computing the op. It is accepted if it passed every case in which
    it was tried."""
    by_name: dict[str, list[TrivialResult]] = {}
    for result in results:
        by_name.setdefault(result.candidate, []).append(result)
    candidates = tuple(
        TriedCandidate(
            name,
            len(tried),
            sum(one.passed for one in tried),
            tuple(dict.fromkeys(one.strategy for one in tried if one.passed)),
        )
        for name, tried in by_name.items()
    )
    accepted = tuple(each.name for each in candidates if each.passed == each.tried)
    return TrivialReport(accepted, candidates)


def as_dtype(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Round values to a dtype as an op would store them; float values beyond its range become Inf.
    In an integer dtype, values wrap, and NaN and Inf become 0."""
    target = numpy_dtype(dtype)
    if values.dtype == target:
        return values
    with np.errstate(all="ignore"):
        if DTYPES[dtype].kind != "float" and values.dtype.kind not in "iub":
            finite = np.where(np.isfinite(to_float64(values)), to_float64(values), 0.0)
            return np.rint(finite).astype(np.int64).astype(target)
        return values.astype(target)


def same_outputs(first: Arrays, second: Arrays) -> bool:
    """Tell whether two sets of outputs are equal value by value; NaN equals NaN, -0 equals 0."""
    return all(
        np.array_equal(to_float64(values), to_float64(second[name]), equal_nan=True)
        for name, values in first.items()
    )


def _median(values: NDArray[Any]) -> float:
    finite = to_float64(values)[np.isfinite(to_float64(values))]
    return float(np.median(finite)) if finite.size else 1.0


def _copy(array: NDArray[Any], right: Arrays) -> dict[str, NDArray[Any]] | None:
    """Return outputs that copy an input, reshaped or broadcast to the shape of each output. `array`
    is the input, and `right` has the correct outputs. If the input does not fit the shape of an
    output, this output is filled with zeros. If it fits no output, the result is None."""
    outputs: dict[str, NDArray[Any]] = {}
    fits = False
    for name, values in right.items():
        source: NDArray[Any] | None = None
        if array.size == values.size:
            source = array.reshape(values.shape)
        else:
            try:
                source = np.broadcast_to(array, values.shape)
            except ValueError:
                source = None
        fits = fits or source is not None
        if source is None:
            outputs[name] = np.zeros_like(values)
        else:
            outputs[name] = as_dtype(source, values.dtype.name).copy()
    return outputs if fits else None


def _earlier(previous: Arrays, right: Arrays) -> dict[str, NDArray[Any]] | None:
    """Return the earlier case's outputs in the dtypes of `right`; None if a shape differs."""
    if previous.keys() != right.keys():
        return None
    if any(previous[name].shape != values.shape for name, values in right.items()):
        return None
    return {name: as_dtype(previous[name], v.dtype.name).copy() for name, v in right.items()}
