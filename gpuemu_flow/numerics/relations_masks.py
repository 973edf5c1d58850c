"""Relations of masks that are off by one, or at a tile's edge: what is lost, and what is too much.

==================  ==============================================================================
kind                what the op does
==================  ==============================================================================
``unwritten``       leaves the last (or first) index of an axis 0, or NaN
``unwritten-tiles`` leaves what lies beyond whole tiles, or the last index of each tile, 0
``short``           computes without the last (or first) index of a dim
``masked``          takes the last index of a dim for 0
``masked-tiles``    takes for 0 what lies beyond whole tiles of a dim, or beyond its first tile
``overread``        counts one element more: the first of the next row
``tile-edge``       leaves out the last index of each tile of a dim, or counts it twice
``mask-shift``      lets each index of an input meet what belongs to the next, or previous, one
``place``           goes wrong at the last (or first) index of an axis and nowhere else
==================  ==============================================================================

Elements of which a relation says nothing are *free*: what lies where an op should not have read,
and what was never written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.judge import BoolArray
from gpuemu_flow.numerics.relations import (
    FEWEST,
    WRONG,
    Floats,
    Observation,
    Relation,
    agrees,
    is_near,
)
from gpuemu_flow.numerics.relations_inputs import CUT_TILES, Ask
from gpuemu_flow.numerics.ulp import Float64Array

KINDS = (
    "unwritten", "unwritten-tiles", "short", "masked", "masked-tiles", "overread", "tile-edge",
    "mask-shift", "place",
)  # fmt: skip

FILLED = 0.5
"""Share of a place that has to be wrong for the place to be what is wrong."""

GIVES = "actual is what the reference gives"


@dataclass(frozen=True)
class _Prediction:
    """What a relation makes of one case; `free` are the elements that it says nothing of."""

    outputs: Floats
    free: dict[str, BoolArray] = field(default_factory=dict)


_Make = Callable[[Ask], _Prediction | None]
_Hypothesis = tuple[Relation, _Make]


def mask_relations(seen: Observation, ask: Ask) -> set[Relation]:
    """Every such relation that explains a failing case."""
    found = set()
    telling, whole = seen.telling, all(mask.all() for mask in seen.wrong.values())
    for relation, make in _hypotheses(seen):
        of_place = relation.kind in _OF_PLACES
        if whole if of_place else not telling:
            continue
        if _tell(seen, make(ask), fewest=1 if of_place else FEWEST):
            found.add(relation)
    return found


def mask_holds(relation: Relation, seen: Observation, ask: Ask) -> bool | None:
    """Tell whether such a relation holds in a case; None where it says nothing of it."""
    for each, make in _hypotheses(seen):
        if each == relation:
            return _tell(seen, make(ask))
    # A tile that is wider than what there is, or nothing to shift: no error is predicted.
    return None if seen.passed else False


_OF_PLACES = ("unwritten", "unwritten-tiles", "place")


def _tell(seen: Observation, prediction: _Prediction | None, fewest: int = 1) -> bool | None:
    if prediction is None:
        return False
    with np.errstate(all="ignore"):
        return _compared(seen, prediction, fewest)


def _compared(seen: Observation, prediction: _Prediction, fewest: int) -> bool | None:
    told = 0
    for name, actual in seen.actual.items():
        predicted = prediction.outputs.get(name)
        if predicted is None or predicted.shape != actual.shape:
            return False
        free = prediction.free.get(name, np.zeros(actual.shape, bool))
        predicted = np.where(free, actual, predicted)
        wrong = seen.wrong.get(name, np.zeros(actual.shape, bool)) & ~free
        if seen.passed:
            # Nine tenths are too few here: all but one element of a row are right anyway.
            relative = 20.0 * WRONG.get(seen.dtypes[name], 0.0)
            close = is_near(actual, predicted, relative)
            close |= is_near(predicted, seen.expected[name], relative)
            if not close.all():
                return False
            told += int(np.count_nonzero(~free))
        else:
            if not agrees(seen, name, predicted, wrong):
                return False
            told += int(np.count_nonzero(wrong))
    return True if told >= fewest else None


def _hypotheses(seen: Observation) -> Iterator[_Hypothesis]:
    yield from _unwritten(seen)
    for dim, size in seen.dims.items():
        places = [
            (name, axis)
            for name, array in seen.inputs.items()
            for axis, each in enumerate(seen.axes.get(name, ()))
            if each == dim and axis < array.ndim
        ]
        if places and size:
            yield from _of_dim(seen, dim, size, places)


# What is not written


def _unwritten(seen: Observation) -> Iterator[_Hypothesis]:
    """Places of the outputs; of several outputs, those that share the shape of the first."""
    names = list(seen.actual)
    shape = seen.actual[names[0]].shape if names else ()
    if any(seen.actual[name].shape != shape for name in names):
        return
    for axis, size in enumerate(shape):
        index = np.arange(size)
        where = _axis_words(seen, names[0], axis)
        for word, chosen in (("last", index == size - 1), ("first", index == 0)):
            mask = _along(chosen, axis, shape)
            yield from _left(seen, f"{word}, axis {axis}", f"the {word} index of {where}", mask)
        for tile in CUT_TILES:
            if tile >= size:
                continue
            rest, edge = index >= size // tile * tile, index % tile == tile - 1
            if rest.any():
                words = f"beyond the last whole tile of {tile} along {where}"
                yield _zeros(seen, f"tail, {tile}, axis {axis}", words, _along(rest, axis, shape))
            words = f"at the last index of each tile of {tile} along {where}"
            yield _zeros(seen, f"edge, {tile}, axis {axis}", words, _along(edge, axis, shape))
    if len(shape) > 1:
        mask = np.zeros(shape, bool)
        mask[(-1,) * len(shape)] = True
        yield from _left(seen, "last, in memory", "the last element", mask)


def _left(seen: Observation, formula: str, where: str, mask: BoolArray) -> Iterator[_Hypothesis]:
    for shown, value in (("0", 0.0), ("NaN", np.nan)):
        sentence = f"{where} of actual is {shown}, as if it were never written"
        relation = Relation("unwritten", "", f"{formula}, {shown}", sentence)
        yield relation, _filled(seen, mask, value)
    sentence = f"{where} of actual is wrong, and nothing else"
    yield Relation("place", "", formula, sentence), _wrong_there(seen, mask)


def _zeros(seen: Observation, formula: str, where: str, mask: BoolArray) -> _Hypothesis:
    sentence = f"actual is 0 {where}, as if it were never written"
    return Relation("unwritten-tiles", "", formula, sentence), _filled(seen, mask, 0.0)


def _filled(seen: Observation, mask: BoolArray, value: float) -> _Make:
    def make(ask: Ask) -> _Prediction:
        del ask
        return _Prediction({n: np.where(mask, value, e) for n, e in seen.expected.items()})

    return make


def _wrong_there(seen: Observation, mask: BoolArray) -> _Make:
    def make(ask: Ask) -> _Prediction | None:
        del ask
        wrong = [seen.wrong.get(name, np.zeros(mask.shape, bool)) for name in seen.actual]
        if not seen.passed and any(
            np.count_nonzero(each & mask) < FILLED * np.count_nonzero(mask) for each in wrong
        ):
            return None
        if seen.passed:
            return _Prediction({n: np.where(mask, np.nan, e) for n, e in seen.expected.items()})
        return _Prediction({n: np.where(mask, seen.actual[n], e) for n, e in seen.expected.items()})

    return make


def _along(chosen: BoolArray, axis: int, shape: tuple[int, ...]) -> BoolArray:
    sizes = [1] * len(shape)
    sizes[axis] = -1
    return np.broadcast_to(chosen.reshape(sizes), shape)


def _axis_words(seen: Observation, name: str, axis: int) -> str:
    dims = seen.axes.get(name, ())
    return str(dims[axis]) if axis < len(dims) and isinstance(dims[axis], str) else f"axis {axis}"


# What is not read, or too much


def _of_dim(
    seen: Observation, dim: str, size: int, places: list[tuple[str, int]]
) -> Iterator[_Hypothesis]:
    inside = any(dim in seen.axes.get(name, ()) for name in seen.expected)
    named = all(name in seen.axes for name in seen.expected)
    index = np.arange(size)
    shorter = [("first", index[1:])] if named else []
    if inside:  # else it is a `cut`
        shorter.append(("last", index[:-1]))
    for word, kept in shorter:
        relation = Relation("short", dim, word, f"{GIVES} for {dim} without its {word} element")
        yield relation, _chosen(seen, dim, places, kept)
    sentence = f"{GIVES} with 0 for the last element along {dim}"
    yield Relation("masked", dim, "last", sentence), _blanked(seen, dim, places, index < size - 1)
    yield from _overread(seen, dim, places)
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
    seen: Observation, dim: str, places: list[tuple[str, int]], kept: NDArray[np.int_]
) -> _Make:
    """Ask with some indices of a dim only; the others are free in the outputs."""

    def make(ask: Ask) -> _Prediction | None:
        free = _free(seen, dim, kept)
        if not _leaves_something(seen, free):
            return _Prediction(seen.expected, free)
        inputs = dict(seen.inputs)
        for name, axis in places:
            inputs[name] = np.take(inputs[name], kept, axis)
        given = ask(inputs)
        if given is None or given.keys() != seen.expected.keys():
            return None
        return _Prediction({n: _placed(seen, n, dim, kept, a) for n, a in given.items()}, free)

    return make


def _placed(
    seen: Observation, name: str, dim: str, kept: NDArray[np.int_], array: Float64Array
) -> Float64Array:
    """Put what was computed for some indices of a dim in their places."""
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


def _blanked(seen: Observation, dim: str, places: list[tuple[str, int]], kept: BoolArray) -> _Make:
    def make(ask: Ask) -> _Prediction | None:
        free = _free(seen, dim, np.flatnonzero(kept))
        if not _leaves_something(seen, free):
            return _Prediction(seen.expected, free)
        inputs = dict(seen.inputs)
        for name, axis in places:
            array = inputs[name]
            if array.dtype.kind == "f":
                inputs[name] = np.where(_along(kept, axis, array.shape), array, 0.0)
        given = ask(inputs)
        return None if given is None else _Prediction(given, free)

    return make


def _overread(seen: Observation, dim: str, places: list[tuple[str, int]]) -> Iterator[_Hypothesis]:
    """One element more of each row: in memory, the first of the next; of the last row, any."""
    rows = [(n, axis) for n, axis in places if axis == seen.inputs[n].ndim - 1 >= 1]
    if not rows:
        return

    def make(ask: Ask) -> _Prediction | None:
        free = {}
        for name, array in seen.expected.items():
            mask = np.zeros(array.shape, bool)
            axes = seen.axes.get(name, ())
            mask[tuple(slice(None) if each == dim else -1 for each in axes[: array.ndim])] = True
            free[name] = mask
        if not _leaves_something(seen, free):
            return _Prediction(seen.expected, free)
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
            cut[name] = array
        return _Prediction(cut, free)

    sentence = f"actual counts one element beyond the end of {dim}: the first of the next row"
    yield Relation("overread", dim, "1", sentence), make


def _shifts(seen: Observation, dim: str, places: list[tuple[str, int]]) -> Iterator[_Hypothesis]:
    """A comparison of two indices that is off by one, as that of a causal mask."""
    if len({name for name, _ in places}) < 2:
        return
    for name, axis in places:
        others = " and ".join(sorted({n for n, _ in places} - {name}))
        for step, words in ((1, "next"), (-1, "previous")):
            sentence = f"each index of {name} along {dim} meets the {words} one's {others}"
            relation = Relation("mask-shift", name, f"{words}, {dim}", sentence)
            yield relation, _shifted(seen, dim, name, axis, step)


def _shifted(seen: Observation, dim: str, name: str, axis: int, step: int) -> _Make:
    def make(ask: Ask) -> _Prediction | None:
        kept = np.arange(seen.dims[dim])
        free = _free(seen, dim, kept[:-1] if step > 0 else kept[1:])
        if not _leaves_something(seen, free):
            return _Prediction(seen.expected, free)
        given = ask({**seen.inputs, name: np.roll(seen.inputs[name], step, axis)})
        if given is None or given.keys() != seen.expected.keys():
            return None
        back = {}
        for out, array in given.items():
            for place, each in enumerate(seen.axes.get(out, ())):
                if each == dim and place < array.ndim:
                    array = np.roll(array, -step, place)  # noqa: PLW2901
            back[out] = array
        return _Prediction(back, free)

    return make


def _free(seen: Observation, dim: str, kept: NDArray[np.intp]) -> dict[str, BoolArray]:
    """The elements of the outputs at indices of a dim that are not kept."""
    found = {}
    for name, array in seen.expected.items():
        mask = np.zeros(array.shape, bool)
        for axis, each in enumerate(seen.axes.get(name, ())):
            if each == dim and axis < array.ndim:
                there = np.ones(array.shape[axis], bool)
                there[kept[kept < there.size]] = False
                mask |= _along(there, axis, array.shape)
        found[name] = mask
    return found


def _leaves_something(seen: Observation, free: dict[str, BoolArray]) -> bool:
    """Tell whether anything is to be explained that is not free, and the reference to be asked."""
    if seen.passed:
        return True
    return any((wrong & ~free[name]).any() for name, wrong in seen.wrong.items())
