"""Relations that imitate a bug by running the reference on changed inputs.

==================  ==============================================================================
kind                actual is what the reference gives
==================  ==============================================================================
``scaled-input``    with an input times a constant, or times a function of a dim's size
``ignored``         with an input all zeros, or all ones
``rolled``          with an input shifted by one place along an axis
``reversed-input``  with an input in reverse order along an axis
``swapped-halves``  with the two halves of an input along an axis exchanged
``swapped-input``   with two axes of an input swapped
``repeated-input``  with the first slice of an input along an axis in the place of all slices
``rounded-input``   with one float input, or all of them, rounded to a 16-bit format
``swapped-inputs``  with two inputs exchanged
``off-by-one``      with all values of an integer input one less, or one more
``clamped-index``   with an integer input that never reaches the last, or the first, index of a dim
``cut``             with a dim cut to whole tiles, to its first tile, or short of its last element
``padded``          with a dim filled up with zeros to whole tiles
``extra-zero``      with an extra zero at the end of a dim
``wrong-axis``      computing along another axis of an input
``eps``             with another epsilon, without one, or with one added outside of the root
``row-stat``        with each row scaled as if another statistic of the row had been used
==================  ==============================================================================
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import numpy_dtype, to_float64
from gpuemu_flow.numerics.relations import Floats, ObservedCase, Relation, agrees, factors
from gpuemu_flow.numerics.ulp import Float64Array

Arrays = Mapping[str, NDArray[Any]]
Ask = Callable[[Arrays], Floats | None]
"""Evaluates the reference on other inputs; None if it refuses them or the budget is spent."""

CUT_TILES = (4, 8, 16, 32, 64, 128, 256)
EPSILONS = (1e-3, 1e-5, 1e-6, 1e-8, 1e-12)

Change = tuple[
    Relation, Callable[[ObservedCase], tuple[Arrays, Callable[[Float64Array, str], Any]]]
]


def holds(relation: Relation, seen: ObservedCase, ask: Ask) -> bool | None:
    """Tell whether one relation holds in a case; return None if the case cannot decide."""
    for each, make in changes(seen):
        if each == relation:
            return _explains(seen, make, ask)
    for each, predictions in _row_statistics(seen, ask):
        if each == relation:
            return _all_agree(seen, predictions)
    return None


def input_relations(seen: ObservedCase, ask: Ask) -> set[Relation]:
    """Return all relations of this module, such as ``ignored``, that explain a failing case."""
    found = {relation for relation, make in changes(seen) if _explains(seen, make, ask)}
    found |= {r for r, predictions in _row_statistics(seen, ask) if _all_agree(seen, predictions)}
    return found


def _explains(seen: ObservedCase, make: Any, ask: Ask) -> bool | None:
    inputs, back = make(seen)
    given = ask(inputs)
    if given is None or given.keys() != seen.expected.keys():
        return None
    return _all_agree(seen, {name: back(array, name) for name, array in given.items()})


def _all_agree(seen: ObservedCase, predictions: Floats) -> bool:
    wrong = seen.wrong
    with np.errstate(all="ignore"):
        return all(
            agrees(seen, name, array, wrong.get(name, np.zeros(array.shape, bool)))
            for name, array in predictions.items()
            if name in seen.actual
        )


def _same(array: Float64Array, name: str) -> Float64Array:
    return array


def changes(seen: ObservedCase) -> Iterator[Change]:
    """Yield the relations to test, each with a function that applies it to a case.

    The function returns the changed inputs and a second function. The reference is then evaluated
    on the changed inputs. The second function converts an output of this evaluation, given with its
    name, to a form that can be compared with the op's output.
    """
    for name, array in seen.inputs.items():
        if array.dtype.kind == "f":
            yield from _of_float_input(seen, name, array)
        elif array.dtype.kind in "iu":
            for step, words in ((-1, "less"), (1, "more")):
                sentence = f"actual is what the reference gives with {name} one {words}"
                relation = Relation("off-by-one", name, words, sentence)
                low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
                yield _with(relation, name, partial(_stepped, step, low, high))
            yield from _of_ends(seen, name, array)
    yield from _of_pairs(seen)
    yield from _of_dims(seen)
    yield from _of_axes(seen)
    floats = [name for name, array in seen.inputs.items() if array.dtype.kind == "f"]
    if len(floats) > 1:
        for form in ("float16", "bfloat16"):
            sentence = f"actual is what the reference gives with all inputs rounded to {form}"
            relation = Relation("rounded-input", "", form, sentence)

            def rounded(seen: ObservedCase, form: str = form) -> Any:
                inputs = {
                    n: _rounded(a, form) if a.dtype.kind == "f" else a
                    for n, a in seen.inputs.items()
                }
                return inputs, _same

            yield relation, rounded


def _of_ends(seen: ObservedCase, name: str, array: NDArray[Any]) -> Iterator[Change]:
    """Yield relations in which the op clamps the indices in an input one place too early.

    The indices are clamped to at least 1 or, for each dim that they may refer to, to at most the
    dim's size minus 2.
    """
    gives = "actual is what the reference gives with"
    for dim, size in seen.dims.items():
        if size < 2 or not array.size or not 0 <= array.max() < size:
            continue
        if dim in seen.axes.get(name, ()):
            continue
        sentence = f"{gives} {name} clamped to {dim}-2: the last index of {dim} is never read"
        relation = Relation("clamped-index", name, f"{dim}-2", sentence)
        yield _with(relation, name, partial(np.minimum, size - 2))
    sentence = f"{gives} {name} clamped to 1 from below: index 0 is never read"
    relation = Relation("clamped-index", name, "1", sentence)
    yield _with(relation, name, partial(np.maximum, 1))


def _with(relation: Relation, name: str, change: Callable[[Any], Any]) -> Change:
    def make(seen: ObservedCase) -> Any:
        return {**seen.inputs, name: change(seen.inputs[name])}, _same

    return relation, make


def _stepped(step: int, low: int, high: int, array: NDArray[Any]) -> NDArray[Any]:
    moved: NDArray[Any] = np.clip(array + step, min(low, 0), high)
    return moved


def _swapped(array: Float64Array, name: str, i: int, j: int) -> Float64Array:
    return np.swapaxes(array, i, j)


def _first_only(array: Float64Array, axis: int) -> Float64Array:
    return np.repeat(np.take(array, [0], axis), array.shape[axis], axis)


def _rounded(array: Float64Array, form: str) -> Float64Array:
    with np.errstate(all="ignore"):
        return to_float64(array.astype(numpy_dtype(form)))


def _of_float_input(seen: ObservedCase, name: str, array: Float64Array) -> Iterator[Change]:
    gives = "actual is what the reference gives with"

    def make(kind: str, formula: str, words: str, change: Callable[[Any], Any]) -> Change:
        return _with(Relation(kind, name, formula, f"{gives} {words}"), name, change)

    yield make("ignored", "0", f"zeros for {name}: {name} is left out", np.zeros_like)
    yield make("ignored", "1", f"ones for {name}: {name} is left out", np.ones_like)
    for formula, factor in itertools.islice(_plain_factors(seen.dims), 40):
        yield make("scaled-input", formula, f"{formula} × {name}", partial(np.multiply, factor))
    for form in ("float16", "bfloat16"):
        words = f"{name} rounded to {form}"
        yield make("rounded-input", form, words, partial(_rounded, form=form))
    for axis, size in enumerate(array.shape):
        if size < 2:
            continue
        along = f"along axis {axis}" if array.ndim > 1 else "along it"
        for step, words in ((1, "before"), (-1, "behind")):
            yield make(
                "rolled", f"1 {words}, axis {axis}", f"the element of {name} 1 {words} {along}",
                partial(np.roll, shift=step, axis=axis),
            )  # fmt: skip
        yield make(
            "reversed-input", str(axis), f"{name} in reverse order {along}",
            partial(np.flip, axis=axis),
        )  # fmt: skip
        yield make(
            "repeated-input", str(axis), f"the first index of {name} {along} for all",
            partial(_first_only, axis=axis),
        )  # fmt: skip
        if size % 2 == 0:
            yield make(
                "swapped-halves", str(axis), f"the halves of {name} {along} exchanged",
                partial(np.roll, shift=size // 2, axis=axis),
            )  # fmt: skip
    for i, j in itertools.combinations(range(array.ndim), 2):
        if array.shape[i] == array.shape[j] > 1:
            yield make(
                "swapped-input", f"{i}, {j}", f"axes {i} and {j} of {name} swapped",
                partial(np.swapaxes, axis1=i, axis2=j),
            )  # fmt: skip


def _plain_factors(dims: Mapping[str, int]) -> Iterator[tuple[str, float]]:
    return ((name, value) for name, value in factors(dims) if "rounded" not in name)


def _of_pairs(seen: ObservedCase) -> Iterator[Change]:
    for first, second in itertools.combinations(seen.inputs, 2):
        one, other = seen.inputs[first], seen.inputs[second]
        if one.shape == other.shape and one.dtype == other.dtype:
            sentence = f"actual is what the reference gives with {first} and {second} swapped"
            relation = Relation("swapped-inputs", f"{first}, {second}", "", sentence)

            def make(seen: ObservedCase, first: str = first, second: str = second) -> Any:
                swapped = {first: seen.inputs[second], second: seen.inputs[first]}
                return {**seen.inputs, **swapped}, _same

            yield relation, make


def _of_dims(seen: ObservedCase) -> Iterator[Change]:
    for dim, size in seen.dims.items():
        places = [
            (n, axis)
            for n in seen.inputs
            for axis, d in enumerate(seen.axes.get(n, ()))
            if d == dim
        ]
        if not places:
            continue
        inside = any(dim in seen.axes.get(name, ()) for name in seen.expected)
        if not inside and size > 1 and len(seen.axes) > len(seen.inputs):
            yield from _cuts(dim, size, places)
        sentence = f"actual counts a 0 beside the elements along {dim}: a start at 0, or padding"
        relation = Relation("extra-zero", dim, "1", sentence)
        yield relation, _resized(dim, size, size + 1, places)
        for tile in CUT_TILES:
            padded = -(-size // tile) * tile
            sentence = f"actual counts zeros beyond the end of {dim}, up to a multiple of {tile}"
            relation = Relation("padded", dim, f"{tile}", sentence)
            yield relation, _resized(dim, size, padded, places)


def _cuts(dim: str, size: int, places: list[tuple[str, int]]) -> Iterator[Change]:
    gives = f"actual is what the reference gives for {dim}"
    for tile in CUT_TILES:
        relation = Relation(
            "cut", dim, f"whole tiles of {tile}", f"{gives} cut to whole tiles of {tile}"
        )
        yield relation, _resized(dim, size, size // tile * tile, places)
        relation = Relation("cut", dim, f"first {tile}", f"{gives} cut to its first {tile}")
        yield relation, _resized(dim, size, min(size, tile), places)
    relation = Relation("cut", dim, "last", f"{gives} without its last element")
    yield relation, _resized(dim, size, size - 1, places)


def _resized(dim: str, size: int, wanted: int, places: list[tuple[str, int]]) -> Any:
    """Return a function that changes the size of a dim, by cutting the inputs or appending zeros.

    The function takes a case. It returns the resized inputs and a second function, which cuts the
    outputs for these inputs back to the dim's original size.

    Parameters
    ----------
    dim : str
    size, wanted : int
        The original and the new size.
    places : list of (str, int)
        The name of each input that has the dim, and the dim's axis in it.
    """

    def make(seen: ObservedCase) -> Any:
        inputs = dict(seen.inputs)
        for name, axis in places:
            array = inputs[name]
            if wanted <= size:
                array = np.take(array, range(wanted), axis)
            else:
                width = [(0, 0)] * array.ndim
                width[axis] = (0, wanted - size)
                array = np.pad(array, width)
            inputs[name] = array

        def back(array: Float64Array, name: str) -> Float64Array:
            for axis, each in enumerate(seen.axes.get(name, ())):
                if each == dim and axis < array.ndim and array.shape[axis] > size:
                    array = np.take(array, range(size), axis)
            return array

        return inputs, back

    return make


def _of_axes(seen: ObservedCase) -> Iterator[Change]:
    """Yield relations in which the op computes along the wrong one of two axes of an input.

    To test this, the reference is run on the input with the two axes swapped, and the axes of its
    outputs are swapped back. Only an input that has the shape of all outputs is tried.
    """
    for name, array in seen.inputs.items():
        if array.ndim < 2 or array.dtype.kind != "f":
            continue
        if any(out.shape != array.shape for out in seen.expected.values()):
            continue
        if any(a.ndim > 1 for n, a in seen.inputs.items() if n != name):
            continue
        for i, j in itertools.combinations(range(array.ndim), 2):
            if max(array.shape[i], array.shape[j]) < 2:
                continue
            sentence = f"actual is computed along axis {i} of {name} where axis {j} is meant"
            relation = Relation("wrong-axis", name, f"{i}, {j}", sentence)

            def make(seen: ObservedCase, name: str = name, i: int = i, j: int = j) -> Any:
                inputs = {
                    **seen.inputs,
                    name: np.ascontiguousarray(np.swapaxes(seen.inputs[name], i, j)),
                }
                return inputs, partial(_swapped, i=i, j=j)

            yield relation, make


def _row_statistics(seen: ObservedCase, ask: Ask) -> Iterator[tuple[Relation, Floats]]:
    """Yield each relation in which rows are off by some factor, with the outputs that it predicts.

    The factor does not scale the expected output itself. It scales the difference between the
    expected output and the reference's output for an input of zeros.
    """
    for name, array in seen.inputs.items():
        if array.ndim < 2 or array.dtype.kind != "f" or not array.shape[-1]:
            continue
        if any(out.shape != array.shape for out in seen.expected.values()):
            continue
        base = ask({**seen.inputs, name: np.zeros_like(array)})
        if base is None or base.keys() != seen.expected.keys():
            continue
        with np.errstate(all="ignore"):
            for relation, factor in _row_factors(name, array):
                yield (
                    relation,
                    {
                        out: _beyond(start, factor[..., None], seen.expected[out])
                        for out, start in base.items()
                        if np.isfinite(start).all()
                    },
                )


def _beyond(start: Float64Array, factor: Float64Array, expected: Float64Array) -> Float64Array:
    """Return ``start + factor * (expected - start)``, with one factor per row.

    Where `expected` equals `start`, the result is `start`, even if the factor is NaN or infinite.
    """
    distance = expected - start
    result: Float64Array = np.where(distance == 0.0, start, start + factor * distance)
    return result


def _row_factors(name: str, x: Float64Array) -> Iterator[tuple[Relation, Float64Array]]:
    n = x.shape[-1]
    square = (x * x).mean(-1)
    for what, v in (("variance", x.var(-1)), ("mean square", square)):
        for eps in EPSILONS:
            root = np.sqrt(v + eps)
            sentence = f"eps ({eps:g}) is added outside of the root of the {what} of {name}"
            yield (
                Relation("eps", name, f"outside, {what}, {eps:g}", sentence),
                root / (np.sqrt(v) + eps),
            )
            sentence = f"no eps ({eps:g}) is added to the {what} of {name}"
            yield Relation("eps", name, f"no eps, {what}, {eps:g}", sentence), root / np.sqrt(v)
            if n > 1:
                unbiased = np.sqrt(v * n / (n - 1) + eps)
                sentence = f"the {what} of {name} is divided by n-1 where n is meant"
                yield Relation("row-stat", name, f"n-1, {what}, {eps:g}", sentence), root / unbiased
            for other in EPSILONS:
                if other != eps:
                    sentence = f"eps is {other:g} where {eps:g} is meant, in the {what} of {name}"
                    formula = f"{other:g} for {eps:g}, {what}"
                    yield Relation("eps", name, formula, sentence), root / np.sqrt(v + other)
    norm, top = np.sqrt(square * n), np.abs(x).max(-1)
    for formula, factor in (
        ("divided by the norm once more", 1.0 / norm),
        ("times the norm", norm),
        ("divided by the largest magnitude once more", 1.0 / top),
        ("times the largest magnitude", top),
        ("largest magnitude / norm", top / norm),
        ("norm / largest magnitude", norm / top),
    ):
        sentence = f"each row is off by the factor {formula} of its row of {name}"
        yield Relation("row-stat", name, formula, sentence), factor
