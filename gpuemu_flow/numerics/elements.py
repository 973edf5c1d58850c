"""Wrong and right units of an output, with features that may tell the wrong from the right.

A unit is an element of the output, or a row of an input. Rows are units only if each belongs to a
part of the output, such as a row or an element. The features of an element are the values of the
inputs at its index, and the index. The features of a row are statistics of its values. Features are
never taken from the outputs, which show the effect of the bug and not the condition under which it
occurs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, numpy_dtype, to_float64
from gpuemu_flow.numerics.judge import BoolArray
from gpuemu_flow.numerics.relations import WRONG, ObservedCase, is_near
from gpuemu_flow.numerics.ulp import Float64Array
from gpuemu_flow.quick_dataclass import dataclass

ELEMENT, ROW = "element", "row"
SEVERELY = (8.0, 100.0)
"""Multiples of the least error of a wrong element, above which it is severely wrong, by degree."""

CLEARLY = 5.0
"""Multiple of the largest relative error of right elements, above which an element is wrong."""

ROW_ROUNDING = 0.5
DOUBTFUL = 1e-2
"""Relative error above which an element is not right, however small it is."""


class Feature(NamedTuple):
    """A numeric property that each unit of a case has.

    Attributes
    ----------
    level : str
        `ELEMENT` or `ROW`.
    kind : str
        For an input's element: ``value`` or ``magnitude``. For an input's row: ``top`` (the largest
        value), ``low`` (the smallest value) or ``magnitude`` (the largest magnitude). For the
        unit's index: ``flat`` or ``axis``.
    subject : str
        The input, or the number of the axis; empty for the flat index.
    """

    level: str
    kind: str
    subject: str

    @property
    def of_place(self) -> bool:
        """Tell whether the feature is an index of the unit."""
        return self.kind in ("flat", "axis")


@dataclass(frozen=True)
class LabelledUnits:
    """The units of one case, with their features and the labels ``wrong`` and ``right``.

    Attributes
    ----------
    passed : bool
        True if the case passed; then all units are labelled `right`.
    wrong, right, dull : mapping of str to ndarray of bool
        Masks of units, by level (`ELEMENT` or `ROW`). A unit that is neither `wrong` nor `right`
        has no label. Units in `dull` are right but tell little, since an error would hardly show in
        them: NaN, Inf, and zeros such as those of a clamp.
    values : mapping of Feature to ndarray
    sizes : mapping of Feature to int
        The number of possible indices, for features that are indices.
    severe : mapping of str to tuple of ndarray of bool
        For each level, one mask for each factor in `SEVERELY`. A mask marks the units whose error
        is larger than its factor times the error of a barely wrong unit.
    integers : frozenset of str
        Inputs of an integer dtype.
    chosen : bool
        True if the values of an input were chosen next to a boundary, so that their distribution
        is no evidence.
    """

    passed: bool
    wrong: Mapping[str, BoolArray]
    right: Mapping[str, BoolArray]
    dull: Mapping[str, BoolArray]
    values: Mapping[Feature, Float64Array]
    sizes: Mapping[Feature, int]
    severe: Mapping[str, tuple[BoolArray, ...]]
    integers: frozenset[str] = frozenset()
    chosen: bool = False


UNSEEN = 1e-20
"""Size of an expected element, relative to the median, below which no error shows in it."""


def _unseen(expected: Float64Array) -> float:
    sizes = np.abs(expected[np.isfinite(expected) & (expected != 0.0)])
    return UNSEEN * float(np.median(sizes)) if sizes.size else 0.0


def label_units(
    seen: ObservedCase, integers: frozenset[str] = frozenset(), *, chosen: bool = False
) -> LabelledUnits | None:
    """Label the units of a case, elements of the output or rows of an input, as wrong or right.

    The result is None unless the case has exactly one output, which is neither empty nor 0-d.
    `integers` and `chosen` become the attributes of these names.
    """
    if len(seen.actual) != 1:
        return None
    ((name, actual),) = seen.actual.items()
    if not actual.size or not actual.ndim:
        return None
    wrong, right = _marks(seen, name)
    if not chosen:
        wrong &= _beyond_rounding(seen, name)
    if seen.passed:
        wrong, right = np.zeros_like(wrong), np.ones_like(right)
    severe = tuple(wrong & _is_severe(seen, name, times) for times in SEVERELY)
    expected = seen.expected[name]
    dull = right & ((np.abs(expected) <= _unseen(expected)) | ~np.isfinite(expected))
    values: dict[Feature, Float64Array] = {}
    sizes: dict[Feature, int] = {}
    for feature, size, index in _places(actual.shape):
        values[feature], sizes[feature] = index, size
    rows: tuple[BoolArray, ...] = ()
    for given, array in seen.inputs.items():
        aligned = _aligned(seen, given, name)
        if aligned is not None:
            values[Feature(ELEMENT, "value", given)] = aligned.reshape(-1)
            values[Feature(ELEMENT, "magnitude", given)] = np.abs(aligned).reshape(-1)
        leading = array.shape[:-1]
        if array.ndim < 2 or not array.shape[-1] or actual.shape[: len(leading)] != leading:
            continue
        count = int(np.prod(leading))
        if rows and rows[0].size != count:
            continue
        rows = (
            np.logical_or.reduce(wrong.reshape(count, -1), axis=1),
            np.logical_and.reduce(right.reshape(count, -1), axis=1),
            np.logical_and.reduce(dull.reshape(count, -1), axis=1),
            *(np.logical_or.reduce(mask.reshape(count, -1), axis=1) for mask in severe),
        )
        flat = array.reshape(count, -1)
        with np.errstate(all="ignore"):
            values[Feature(ROW, "top", given)] = flat.max(axis=1)
            values[Feature(ROW, "low", given)] = flat.min(axis=1)
            values[Feature(ROW, "magnitude", given)] = np.abs(flat).max(axis=1)
    marks: dict[str, tuple[BoolArray, ...]] = {
        ELEMENT: tuple(mask.reshape(-1) for mask in (wrong, right, dull, *severe))
    }
    if rows:
        marks[ROW] = rows
    wrong_at, right_at, dull_at = (
        {level: each[kind] for level, each in marks.items()} for kind in range(3)
    )
    severe_at = {level: each[3:] for level, each in marks.items()}
    return LabelledUnits(
        seen.passed,
        wrong_at,
        right_at,
        dull_at,
        values,
        sizes,
        severe_at,
        integers,
        chosen,
    )


def _marks(seen: ObservedCase, name: str) -> tuple[BoolArray, BoolArray]:
    """Mark the elements that are clearly wrong, and those that are right."""
    dtype = seen.dtypes[name]
    actual, expected = seen.actual[name], seen.expected[name]
    if dtype in FLOAT_LIMITS and dtype != "float64":
        with np.errstate(all="ignore"):
            # What is beyond the dtype's range is Inf in any right output.
            expected = to_float64(expected.astype(numpy_dtype(dtype)))
    relative = WRONG.get(dtype, 0.0)
    with np.errstate(all="ignore"):
        right = is_near(actual, expected, relative)
        wrong = ~is_near(actual, expected, CLEARLY * relative)
        if dtype in FLOAT_LIMITS:
            # The relative error of rounding to a subnormal number has no limit.
            tiny = np.abs(actual - expected) <= FLOAT_LIMITS[dtype].smallest_normal
            right, wrong = right | tiny, wrong & ~tiny
            # An element that is small beside the others is in doubt if its relative error is large.
            right &= tiny | ~(np.abs(actual - expected) > DOUBTFUL * np.abs(expected))
    mixed = np.isfinite(actual) != np.isfinite(expected)
    return wrong | mixed, right & ~mixed


def _is_severe(seen: ObservedCase, name: str, times: float) -> BoolArray:
    """Mark the elements of output `name` that are severely wrong.

    These are the elements whose error is more than `times` the least error of a wrong element, and
    those of which only the actual or only the expected value is finite.
    """
    actual, expected = seen.actual[name], seen.expected[name]
    relative = times * CLEARLY * WRONG.get(seen.dtypes[name], 0.0)
    mixed = np.isfinite(actual) != np.isfinite(expected)
    with np.errstate(all="ignore"):
        severe: BoolArray = ~is_near(actual, expected, relative) | mixed
    return severe


def _beyond_rounding(seen: ObservedCase, name: str) -> BoolArray:
    """Mark errors that are too large to be rounding errors of the row's largest element."""
    actual, expected = seen.actual[name], seen.expected[name]
    sizes = np.where(np.isfinite(expected), np.abs(expected), 0.0)
    largest = sizes.max(axis=-1, keepdims=True)
    relative = ROW_ROUNDING * WRONG.get(seen.dtypes[name], 0.0)
    with np.errstate(all="ignore"):
        beyond: BoolArray = ~(np.abs(actual - expected) <= relative * largest)
    beyond |= np.isfinite(actual) != np.isfinite(expected)
    return beyond


def _places(shape: tuple[int, ...]) -> Iterator[tuple[Feature, int, Float64Array]]:
    total = int(np.prod(shape))
    if len(shape) > 1:
        for axis, size in enumerate(shape):
            sizes = [1] * len(shape)
            sizes[axis] = -1
            index = np.broadcast_to(np.arange(size, dtype=np.float64).reshape(sizes), shape)
            yield Feature(ELEMENT, "axis", str(axis)), size, index.reshape(-1)
    yield Feature(ELEMENT, "flat", ""), total, np.arange(total, dtype=np.float64)


def _aligned(seen: ObservedCase, given: str, name: str) -> NDArray[np.float64] | None:
    """Return an input's value for each element of the output; None if they do not correspond.

    Input and output correspond if they have the same dims, or if each dim of the input is a dim of
    the output, in the same order.
    """
    array, shape = seen.inputs[given], seen.actual[name].shape
    if array.shape == shape and seen.axes.get(given) == seen.axes.get(name):
        return array
    own, others = seen.axes.get(given, ()), seen.axes.get(name, ())
    if not own or len(own) != array.ndim or len(others) != len(shape):
        return None
    if any(not isinstance(dim, str) or others.count(dim) != 1 for dim in own):
        return None
    places = [others.index(dim) for dim in own]
    if sorted(places) != places:
        return None
    if any(shape[axis] != size for axis, size in zip(places, array.shape, strict=True)):
        return None  # None stands in the place of an optional input
    sizes = [1] * len(shape)
    for axis, size in zip(places, array.shape, strict=True):
        sizes[axis] = size
    return np.broadcast_to(array.reshape(sizes), shape)
