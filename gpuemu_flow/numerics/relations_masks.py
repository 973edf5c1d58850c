"""Relations of masks that are off by one, or wrong at a tile's edge.

==================  ==============================================================================
kind                what the op does
==================  ==============================================================================
``unwritten``       leaves 0 or NaN at the last (or first) index of an axis
``unwritten-tiles`` leaves 0 beyond the whole tiles, or at the last index of each tile
``short``           computes without the last (or first) index of a dim
``masked``          treats the values at the last index of a dim as 0
``masked-tiles``    treats values beyond a dim's whole tiles, or beyond its first tile, as 0
``overread``        includes one element too many: the first of the next row
``tile-edge``       leaves out the last index of each tile of a dim, or counts it twice
``mask-shift``      combines each index of an input with the next, or previous, index of the others
``place``           goes wrong at the last (or first) index of an axis and nowhere else
==================  ==============================================================================

For some elements of the outputs, a relation predicts no value, because the op never wrote them or
computed them from memory that it should not have read. These elements are called *free*.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.judge import BoolArray
from gpuemu_flow.numerics.relations import (
    FEWEST,
    WRONG,
    ObservedCase,
    Relation,
    agrees,
    is_near,
)
from gpuemu_flow.numerics.relations_inputs import CUT_TILES, Ask
from gpuemu_flow.numerics.relations_places import Hypothesis, Make, Prediction, along, unwritten
from gpuemu_flow.numerics.ulp import Float64Array

KINDS = (
    "unwritten", "unwritten-tiles", "short", "masked", "masked-tiles", "overread", "tile-edge",
    "mask-shift", "place",
)  # fmt: skip

GIVES = "actual is what the reference gives"


def mask_relations(seen: ObservedCase, ask: Ask) -> set[Relation]:
    """Return every relation of masks that explains a failing case.

    `seen` is the case with its outputs. `ask` runs the reference on other inputs.
    """
    found = set()
    telling = seen.telling
    for relation, make in _hypotheses(seen, new=True):
        of_place = relation.kind in _OF_PLACES
        if (telling or of_place) and _tell(seen, make(ask), fewest=1 if of_place else FEWEST):
            found.add(relation)
    return found


def mask_holds(relation: Relation, seen: ObservedCase, ask: Ask) -> bool | None:
    """Tell whether a relation of masks holds in a case; return None if the case cannot decide.

    `seen` is the case with its outputs. `ask` runs the reference on other inputs.
    """
    for each, make in _hypotheses(seen):
        if each == relation:
            return _tell(seen, make(ask))
    return None if seen.passed else False


_OF_PLACES = ("unwritten", "unwritten-tiles", "place")


def _tell(seen: ObservedCase, prediction: Prediction | None, fewest: int = 1) -> bool | None:
    if prediction is None:
        return False
    with np.errstate(all="ignore"):
        return _compared(seen, prediction, fewest)


def _compared(seen: ObservedCase, prediction: Prediction, fewest: int) -> bool | None:
    told = 0
    for name, actual in seen.actual.items():
        predicted = prediction.outputs.get(name)
        if predicted is None or predicted.shape != actual.shape:
            return False
        free = prediction.free.get(name, np.zeros(actual.shape, bool))
        predicted = np.where(free, actual, predicted)
        wrong = seen.wrong.get(name, np.zeros(actual.shape, bool)) & ~free
        relative = 10.0 * WRONG.get(seen.dtypes[name], 0.0)
        close = is_near(actual, predicted, relative)
        if seen.passed:
            # All elements must agree: all but one of a row are right with or without the bug.
            close |= is_near(predicted, seen.expected[name], relative)
            if not close.all():
                return False
            told += int(np.count_nonzero(~free))
        else:
            # An error hardly larger than the op's own rounding is no evidence.
            wrong &= ~(close & is_near(actual, seen.expected[name], relative))
            if not agrees(seen, name, predicted, wrong):
                return False
            told += int(np.count_nonzero(wrong))
    return True if told >= fewest else None


def _hypotheses(seen: ObservedCase, *, new: bool = False) -> Iterator[Hypothesis]:
    """Yield each relation to test in a case, with a function that predicts the outputs.

    With `new`, yield only the relations that can explain errors in this case.
    """
    yield from unwritten(seen, new=new)
    for dim, size in seen.dims.items():
        places = [
            (name, axis)
            for name, array in seen.inputs.items()
            for axis, each in enumerate(seen.axes.get(name, ()))
            if each == dim and axis < array.ndim
        ]
        if places and size:
            yield from _of_dim(seen, dim, size, places, new=new)


# Hypotheses that an op reads too little or too much


def _of_dim(
    seen: ObservedCase, dim: str, size: int, places: list[tuple[str, int]], *, new: bool
) -> Iterator[Hypothesis]:
    inside = any(dim in seen.axes.get(name, ()) for name in seen.expected)
    named = all(name in seen.axes for name in seen.expected)
    if new and size < 2:
        return
    index = np.arange(size)
    shorter = [("first", index[1:])] if named else []
    if inside:  # else it is a `cut`
        shorter.append(("last", index[:-1]))
    for word, kept in shorter:
        relation = Relation("short", dim, word, f"{GIVES} for {dim} without its {word} element")
        yield relation, _chosen(seen, dim, places, kept)
    sentence = f"{GIVES} with 0 for the last element along {dim}"
    yield Relation("masked", dim, "last", sentence), _blanked(seen, dim, places, index < size - 1)
    yield from _overread(seen, dim, places, inside=inside)
    if inside:
        yield from _shifts(seen, dim, places)
        return
    if not named:
        return
    for tile in CUT_TILES:
        if tile >= size:
            continue
        for words, end in (
            (f"whole tiles of {tile}", size // tile * tile),
            (f"first {tile}", tile),
        ):
            sentence = f"{GIVES} with 0 for the elements beyond the {words} along {dim}"
            relation = Relation("masked-tiles", dim, words, sentence)
            yield relation, _blanked(seen, dim, places, index < end)
        edges = index % tile == tile - 1
        sentence = f"{GIVES} for {dim} without the last element of each tile of {tile}"
        relation = Relation("tile-edge", dim, f"{tile}, left out", sentence)
        yield relation, _chosen(seen, dim, places, index[~edges])
        sentence = f"{GIVES} with the last element of each tile of {tile} of {dim} counted twice"
        relation = Relation("tile-edge", dim, f"{tile}, twice", sentence)
        yield relation, _chosen(seen, dim, places, np.repeat(index, 1 + edges))


def _chosen(
    seen: ObservedCase, dim: str, places: list[tuple[str, int]], kept: NDArray[np.int_]
) -> Make:
    """Return a function that predicts the outputs from some indices of a dim.

    Parameters
    ----------
    seen : ObservedCase
    dim : str
    places : list of (str, int)
        The name of each input that has the dim, and the axis of the dim.
    kept : ndarray of int
        The indices of the dim with which the reference is run. An index may occur twice.

    Returns
    -------
    callable
        Called with a function that runs the reference on other inputs. Returns a prediction, which
        says nothing about elements at indices that are not in `kept`. Returns None if the reference
        cannot be run.
    """

    def make(ask: Ask) -> Prediction | None:
        free = _free(seen, dim, kept)
        if not _leaves_something(seen, free):
            return Prediction(seen.expected, free)
        inputs = dict(seen.inputs)
        for name, axis in places:
            inputs[name] = np.take(inputs[name], kept, axis)
        given = ask(inputs)
        if given is None or given.keys() != seen.expected.keys():
            return None
        return Prediction({n: _placed(seen, n, dim, kept, a) for n, a in given.items()}, free)

    return make


def _placed(
    seen: ObservedCase, name: str, dim: str, kept: NDArray[np.int_], array: Float64Array
) -> Float64Array:
    """Restore the full size of an output along `dim`, with 0 at the indices not in `kept`.

    `array` has the values of the output `name` at the indices `kept`. If the array's shape
    does not fit `kept`, the array is returned unchanged.
    """
    axes = [axis for axis, each in enumerate(seen.axes.get(name, ())) if each == dim]
    for axis in axes:
        if axis >= array.ndim or array.shape[axis] != kept.size:
            return array
        shape = [*array.shape]
        shape[axis] = seen.expected[name].shape[axis]
        whole = np.zeros(shape)
        np.moveaxis(whole, axis, 0)[kept] = np.moveaxis(array, axis, 0)
        array = whole
    return array


def _blanked(seen: ObservedCase, dim: str, places: list[tuple[str, int]], kept: BoolArray) -> Make:
    def make(ask: Ask) -> Prediction | None:
        free = _free(seen, dim, np.flatnonzero(kept))
        if not _leaves_something(seen, free):
            return Prediction(seen.expected, free)
        inputs = dict(seen.inputs)
        for name, axis in places:
            array = inputs[name]
            if array.dtype.kind == "f":
                inputs[name] = np.where(along(kept, axis, array.shape), array, 0.0)
        given = ask(inputs)
        return None if given is None else Prediction(given, free)

    return make


def _overread(
    seen: ObservedCase, dim: str, places: list[tuple[str, int]], *, inside: bool
) -> Iterator[Hypothesis]:
    """Yield relations in which each row is read one element too far in memory."""
    rows = [(n, axis) for n, axis in places if axis == seen.inputs[n].ndim - 1 >= 1]
    if not rows:
        return

    def make(ask: Ask, factor: float = 1.0) -> Prediction | None:
        free = {}
        for name, array in seen.expected.items():
            mask = np.zeros(array.shape, bool)
            axes = seen.axes.get(name, ())
            mask[tuple(slice(None) if each == dim else -1 for each in axes[: array.ndim])] = True
            free[name] = mask
        if not _leaves_something(seen, free):
            return Prediction(seen.expected, free)
        inputs: dict[str, Any] = dict(seen.inputs)
        for name, axis in places:
            array = inputs[name]
            more = np.zeros_like(np.take(array, [0], axis))
            if (name, axis) in rows:
                heads = array.reshape(-1, array.shape[-1])[:, 0]
                more = np.append(heads[1:], heads[-1:]).reshape(more.shape)
            inputs[name] = np.concatenate([array, more], axis)
        given = ask(inputs)
        if given is None or given.keys() != seen.expected.keys():
            return None
        cut = {}
        for name, array in given.items():
            for axis, each in enumerate(seen.axes.get(name, ())):
                if each == dim and axis < array.ndim:
                    array = np.take(array, range(seen.dims[dim]), axis)  # noqa: PLW2901
            cut[name] = factor * array
        return Prediction(cut, free)

    sentence = f"actual counts one element beyond the end of {dim}: the first of the next row"
    yield Relation("overread", dim, "1", sentence), make
    if not inside:  # a mean may still divide by the right number
        size = seen.dims[dim]
        yield (
            Relation("overread", dim, "1, not divided by", sentence),
            partial(make, factor=(size + 1) / size),
        )


def _shifts(seen: ObservedCase, dim: str, places: list[tuple[str, int]]) -> Iterator[Hypothesis]:
    """Yield relations in which a comparison of two indices is off by one, as in a causal mask."""
    if len({name for name, _ in places}) < 2:
        return
    for name, axis in places:
        others = " and ".join(sorted({n for n, _ in places} - {name}))
        for step, words in ((1, "next"), (-1, "previous")):
            sentence = f"each index of {name} along {dim} meets the {words} one's {others}"
            relation = Relation("mask-shift", name, f"{words}, {dim}", sentence)
            yield relation, _shifted(seen, dim, name, axis, step)


def _shifted(seen: ObservedCase, dim: str, name: str, axis: int, step: int) -> Make:
    def make(ask: Ask) -> Prediction | None:
        kept = np.arange(seen.dims[dim])
        free = _free(seen, dim, kept[:-1] if step > 0 else kept[1:])
        if not _leaves_something(seen, free):
            return Prediction(seen.expected, free)
        given = ask({**seen.inputs, name: np.roll(seen.inputs[name], step, axis)})
        if given is None or given.keys() != seen.expected.keys():
            return None
        back = {}
        for out, array in given.items():
            for place, each in enumerate(seen.axes.get(out, ())):
                if each == dim and place < array.ndim:
                    array = np.roll(array, -step, place)  # noqa: PLW2901
            back[out] = array
        return Prediction(back, free)

    return make


def _free(seen: ObservedCase, dim: str, kept: NDArray[np.intp]) -> dict[str, BoolArray]:
    """Return, for each output, a mask of the elements whose index along `dim` is not in `kept`."""
    found = {}
    for name, array in seen.expected.items():
        mask = np.zeros(array.shape, bool)
        for axis, each in enumerate(seen.axes.get(name, ())):
            if each == dim and axis < array.ndim:
                there = np.ones(array.shape[axis], bool)
                there[kept[kept < there.size]] = False
                mask |= along(there, axis, array.shape)
        found[name] = mask
    return found


def _leaves_something(seen: ObservedCase, free: dict[str, BoolArray]) -> bool:
    """Tell whether the reference must be run to test a relation on a case.

    For a failing case, this is False if all wrong elements are in the masks `free`: the relation
    predicts nothing about these elements. For a passing case, it is always True.
    """
    if seen.passed:
        return True
    return any((wrong & ~free[name]).any() for name, wrong in seen.wrong.items())
