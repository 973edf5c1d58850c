"""Hypotheses about a part of the outputs: it was never written, or all errors lie in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import field

import numpy as np

from gpuemu_flow.numerics.judge import BoolArray
from gpuemu_flow.numerics.relations import Floats, ObservedCase, Relation
from gpuemu_flow.numerics.relations_inputs import CUT_TILES, Ask
from gpuemu_flow.quick_dataclass import dataclass

FILLED = 0.5
"""Smallest share of wrong elements in a part of an output for a relation about that part."""


@dataclass(frozen=True)
class Prediction:
    """The outputs that a relation predicts for one case.

    The masks in `free` mark the elements for which the relation makes no prediction.
    """

    outputs: Floats
    free: dict[str, BoolArray] = field(default_factory=dict)


Make = Callable[[Ask], Prediction | None]
Hypothesis = tuple[Relation, Make]


def unwritten(seen: ObservedCase, *, new: bool) -> Iterator[Hypothesis]:
    """Yield hypotheses that a part of the outputs was never written, or holds all errors.

    Parameters
    ----------
    seen : ObservedCase
        The case that the hypotheses are about. If its outputs have different shapes, no hypothesis
        is yielded.
    new : bool
        True to yield only hypotheses that can explain errors in this case. Axes of size 1, and
        tiles that are not smaller than the axis, are then left out.
    """
    names = list(seen.actual)
    shape = seen.actual[names[0]].shape if names else ()
    if any(seen.actual[name].shape != shape for name in names):
        return
    for axis, size in enumerate(shape):
        index = np.arange(size)
        where = _axis_words(seen, names[0], axis)
        if new and size < 2:
            continue
        for word, chosen in (("last", index == size - 1), ("first", index == 0)):
            mask = along(chosen, axis, shape)
            words = f"the {word} index of {where}"
            yield from _left(seen, where, f"{word}, axis {axis}", words, mask)
        for tile in CUT_TILES:
            if new and tile >= size:
                continue
            rest, edge = index >= size // tile * tile, index % tile == tile - 1
            if rest.any():
                words = f"beyond the last whole tile of {tile} along {where}"
                yield _zeros(seen, f"tail, {tile}, axis {axis}", words, along(rest, axis, shape))
            words = f"at the last index of each tile of {tile} along {where}"
            yield _zeros(seen, f"edge, {tile}, axis {axis}", words, along(edge, axis, shape))
    if len(shape) > 1 and (not new or math.prod(shape) > 1):
        mask = np.zeros(shape, bool)
        mask[(-1,) * len(shape)] = True
        yield from _left(seen, "", "last, in memory", "the last element", mask)


def _left(
    seen: ObservedCase, subject: str, formula: str, where: str, mask: BoolArray
) -> Iterator[Hypothesis]:
    for shown, value in (("0", 0.0), ("NaN", np.nan)):
        sentence = f"{where} of actual is {shown}, as if it were never written"
        relation = Relation("unwritten", subject, f"{formula}, {shown}", sentence)
        yield relation, _filled(seen, mask, value)
    sentence = f"{where} of actual is wrong, and nothing else"
    yield Relation("place", subject, formula, sentence), _wrong_there(seen, mask)


def _zeros(seen: ObservedCase, formula: str, where: str, mask: BoolArray) -> Hypothesis:
    sentence = f"actual is 0 {where}, as if it were never written"
    return Relation("unwritten-tiles", "", formula, sentence), _filled(seen, mask, 0.0)


def _filled(seen: ObservedCase, mask: BoolArray, value: float) -> Make:
    def make(ask: Ask) -> Prediction:
        del ask
        return Prediction({n: np.where(mask, value, e) for n, e in seen.expected.items()})

    return make


def _wrong_there(seen: ObservedCase, mask: BoolArray) -> Make:
    def make(ask: Ask) -> Prediction | None:
        del ask
        wrong = [seen.wrong.get(name, np.zeros(mask.shape, bool)) for name in seen.actual]
        if not seen.passed and any(
            np.count_nonzero(each & mask) < FILLED * np.count_nonzero(mask) for each in wrong
        ):
            return None
        if seen.passed:
            return Prediction({n: np.where(mask, np.nan, e) for n, e in seen.expected.items()})
        return Prediction({n: np.where(mask, seen.actual[n], e) for n, e in seen.expected.items()})

    return make


def along(chosen: BoolArray, axis: int, shape: tuple[int, ...]) -> BoolArray:
    """Expand a mask over the indices of one axis to a mask of a whole shape."""
    sizes = [1] * len(shape)
    sizes[axis] = -1
    return np.broadcast_to(chosen.reshape(sizes), shape)


def _axis_words(seen: ObservedCase, name: str, axis: int) -> str:
    dims = seen.axes.get(name, ())
    return str(dims[axis]) if axis < len(dims) and isinstance(dims[axis], str) else f"axis {axis}"
