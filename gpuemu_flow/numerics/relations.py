"""Relations between wrong outputs and the reference's, as formulas that can be tested on any case.

A relation predicts the wrong output of every case. It counts as found if, in every case that was
examined, it explains nine tenths of the error of nearly all wrong elements. A formula that fits
only roughly does not count: ``repeated``, for example, roughly fits any output whose neighbouring
elements hardly differ.

==================  ==============================================================================
kind                actual is
==================  ==============================================================================
``factor``          a constant, or a function of a dim's size, times expected
``offset``          a constant more than expected
``power``           a root, square, reciprocal, logarithm, exponential or magnitude of expected
``clamped``         expected with negative (or positive) elements as 0
``transposed``      expected with two axes swapped
``reshaped``        expected with its axes permuted, then reshaped to the shape that it had
``shifted``         the expected element one place before or behind
``reversed``        expected from the other end of an axis
``repeated``        the first tile of expected, over and over
``row-term``        expected plus or minus a statistic of the input's row
``half``            made of float16 or bfloat16 values
``wrapped``         expected, kept in an integer of fewer bits
==================  ==============================================================================

`relations_inputs` has the relations for which the reference is run again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field

import numpy as np

from gpuemu_flow.numerics.dtypes import share_held
from gpuemu_flow.numerics.finding import TILES
from gpuemu_flow.numerics.judge import BoolArray
from gpuemu_flow.numerics.ulp import Float64Array
from gpuemu_flow.quick_dataclass import dataclass

Floats = Mapping[str, Float64Array]

NEARLY_ALL = 0.98
MOSTLY = 0.9
"""Share of the elements of a passing case that a prediction must be near."""

ABOUT = 1e-2
"""Largest relative error of a prediction, however much of the op's error it explains."""

DIGITS = {"float16": 3, "bfloat16": 2}
"""Digits to which a factor is known in narrow formats; five in others."""

PASSED = 50.0
"""Error of a prediction in a passing case, as a multiple of the largest error of right elements."""

FAR = 0.1
"""Relative error of a right element's prediction that refutes a relation."""

LEFT = 0.1
"""Largest share of an element's error that a relation may leave unexplained."""

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NOTHING = 1e-30
"""Difference that is ignored, since underflow depends on the order of operations."""

FEWEST = 3
"""Fewest wrong elements of a case in which relations are searched."""

WRONG = {"float64": 1e-9, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Relative errors above which an element counts as wrong here, and a prediction as missed."""


@dataclass(frozen=True)
class Relation:
    """A relation that explains a wrong output.

    Relations from different cases compare equal if all attributes but `sentence` are equal.

    Attributes
    ----------
    kind : str
        One of the kinds that the docstrings of the modules `relations`, `relations_inputs` and
        `relations_masks` list, such as ``factor``.
    subject : str
        The input or dim that the relation is about; may be empty.
    formula : str
        Factor, tile or axis of the relation.
    sentence : str
        The relation in words, for people.
    """

    kind: str
    subject: str
    formula: str
    sentence: str = field(compare=False)


@dataclass(frozen=True)
class ObservedCase:
    """One case, failing or passing, with its values as floats.

    Attributes
    ----------
    dims : mapping of str to int
    axes : mapping of str to tuple of (str or int)
        Maps each input and output to a tuple with one entry per axis: the name of the axis's dim,
        or a number if the axis has a fixed size.
    dtypes : mapping of str to str
        Dtypes of the outputs.
    inputs, actual, expected : mapping of str to ndarray
    passed : bool
        True if the case passed. A relation then holds in the case only if its prediction is close
        to most elements of `actual`.
    """

    dims: Mapping[str, int]
    axes: Mapping[str, tuple[str | int, ...]]
    dtypes: Mapping[str, str]
    inputs: Mapping[str, Float64Array]
    actual: Floats
    expected: Floats
    passed: bool = False

    @property
    def wrong(self) -> dict[str, BoolArray]:
        """Return a mask of the wrong elements of each output that has any."""
        found = {name: self._wrong(name) for name in self.actual}
        return {name: mask for name, mask in found.items() if mask.any()}

    @property
    def telling(self) -> bool:
        """Tell whether enough elements are wrong to look for a relation."""
        return sum(int(mask.sum()) for mask in self.wrong.values()) >= FEWEST

    def _wrong(self, name: str) -> BoolArray:
        relative = WRONG.get(self.dtypes[name], 0.0)
        return ~is_near(self.actual[name], self.expected[name], relative)

    def usable(self) -> bool:
        """Tell whether all outputs have the expected shapes, as comparing predictions requires."""
        return all(
            name in self.expected and array.shape == self.expected[name].shape
            for name, array in self.actual.items()
        )


def is_near(values: Float64Array, others: Float64Array, relative: float) -> BoolArray:
    """Return a mask of the values that differ by at most a relative error from `others`.

    Two NaN count as near each other.
    """
    finite = np.abs(others[np.isfinite(others)])
    scale = float(np.median(finite)) if finite.size else 0.0
    with np.errstate(all="ignore"):
        slack = relative * (np.abs(others) + 0.1 * scale) + NOTHING
        near = np.abs(values - others) <= slack
    result: BoolArray = near | (values == others) | (np.isnan(values) & np.isnan(others))
    return result


def agrees(seen: ObservedCase, name: str, predicted: Float64Array, wrong: BoolArray) -> bool:
    """Tell whether a prediction explains both the wrong and the correct elements of one output.

    If the case passed, nearly all elements must be close to the prediction.

    Parameters
    ----------
    seen : ObservedCase
    name : str
        Name of the output.
    predicted : ndarray
        The prediction for the output.
    wrong : ndarray of bool
        Mask of the wrong elements of the output. Not used if the case passed.
    """
    actual, expected = seen.actual[name], seen.expected[name]
    if predicted.shape != actual.shape:
        return False
    relative = WRONG.get(seen.dtypes[name], 0.0)
    if seen.passed:
        # A passing output differs from a correct one by rounding only: a factor of 1.01 is not
        # near.
        near = is_near(actual, predicted, min(ABOUT, PASSED * relative))
        return float(np.mean(near)) >= MOSTLY
    if _foretells_what_is_not(actual, expected, predicted, relative):
        return False
    near = is_near(actual, predicted, 2.0 * relative)
    about = near | is_near(actual, predicted, max(ABOUT, relative))
    with np.errstate(all="ignore"):
        left = np.abs(actual - predicted) <= LEFT * np.abs(actual - expected)
    explained = about & (left | (actual == predicted) | ~np.isfinite(actual))
    if np.count_nonzero(explained & wrong) < NEARLY_ALL * np.count_nonzero(wrong):
        return False
    others = near | is_near(predicted, expected, 20.0 * relative)
    return bool(np.count_nonzero(others & ~wrong) >= NEARLY_ALL * np.count_nonzero(~wrong))


def _foretells_what_is_not(
    actual: Float64Array, expected: Float64Array, predicted: Float64Array, relative: float
) -> bool:
    """Tell whether the prediction is far off for an element that the op computed correctly.

    Such a prediction is rejected, even if it explains all wrong elements. For example, an op may
    start the maximum of each row from 0 instead of -Inf. Its outputs are then nearly those of an op
    that reads the last element of each row as 0. Without this test, the bug could be blamed on the
    last element.
    """
    sizes = np.abs(expected[np.isfinite(expected)])
    scale = float(np.median(sizes)) if sizes.size else 0.0
    with np.errstate(all="ignore"):
        far = np.abs(predicted - expected) > FAR * (np.abs(expected) + scale)
    right = is_near(actual, expected, relative) & np.isfinite(expected) & np.isfinite(predicted)
    far &= ~is_near(actual, predicted, FAR)
    return bool((far & right).any())


def output_relations(seen: ObservedCase) -> set[Relation]:
    """Return the relations that explain a failing case; the reference is not run again."""
    wrong = seen.wrong
    if not wrong:
        return set()
    found: set[Relation] | None = None
    with np.errstate(all="ignore"):
        for name, mask in wrong.items():
            here = {r for r, p in _predictions(seen, name, mask) if agrees(seen, name, p, mask)}
            here |= set(_halves(seen, name, mask))
            found = here if found is None else found & here
    return found or set()


def predict(relation: Relation, seen: ObservedCase) -> bool:
    """Tell whether a relation of `output_relations` holds in a case, failing or not."""
    with np.errstate(all="ignore"):
        for name in seen.actual:
            mask = seen.wrong.get(name, np.zeros(seen.actual[name].shape, bool))
            if relation.kind == "half":
                if mask.any() and relation not in set(_halves(seen, name, mask)):
                    return False
                continue
            options = _predictions(seen, name, mask, also=relation)
            if not any(r == relation and agrees(seen, name, p, mask) for r, p in options):
                return False
    return True


def _predictions(
    seen: ObservedCase, name: str, wrong: BoolArray, also: Relation | None = None
) -> Iterator[tuple[Relation, Float64Array]]:
    expected = seen.expected[name]
    yield from _factors(seen, name, wrong, also)
    for formula, value in (
        ("√expected, a root too many or a square missing", np.sqrt(expected)),
        ("expected², a root is missing", expected * expected),
        ("1 / expected", 1.0 / expected),
        ("exp(expected)", np.exp(expected)),
        ("log(expected)", np.log(expected)),
        ("|expected|", np.abs(expected)),
    ):
        yield Relation("power", "", formula, f"actual is {formula}"), value
    yield (
        Relation("clamped", "", "below 0", "negative elements of expected are 0 in actual"),
        np.maximum(expected, 0.0),
    )
    yield (
        Relation("clamped", "", "above 0", "positive elements of expected are 0 in actual"),
        np.minimum(expected, 0.0),
    )
    if seen.dtypes[name] in INTEGERS:
        yield from _wrapped(expected)
    yield from _moves(expected)
    yield from _row_terms(seen, expected)


def _wrapped(expected: Float64Array) -> Iterator[tuple[Relation, Float64Array]]:
    """Yield relations in which integers wrap to fewer bits, each with the integers it predicts."""
    for bits in (8, 16, 32):
        whole = 2.0**bits
        for sign, least in (("", -whole / 2), ("u", 0.0)):
            sentence = f"actual is expected as {sign}int{bits} holds it: what is beyond wraps"
            relation = Relation("wrapped", "", f"{sign}int{bits}", sentence)
            yield relation, np.mod(expected - least, whole) + least


def factors(dims: Mapping[str, int]) -> Iterator[tuple[str, float]]:
    """Yield the name and value of each factor by which an op's outputs may be wrong.

    Constants such as 2 come first, then functions of the size of a dim.
    """
    yield from (("-1", -1.0), ("2", 2.0), ("1/2", 0.5), ("log2 e", 1.0 / math.log(2.0)))
    yield from (("ln 2", math.log(2.0)), ("√2", math.sqrt(2.0)), ("1/√2", math.sqrt(0.5)))
    for name, size in dims.items():
        if size > 0:
            root = math.sqrt(size)
            yield from ((f"1/√{name}", 1 / root), (f"√{name}", root))
            yield from ((f"1/{name}", 1 / size), (name, float(size)))
        if size > 1:
            ratio = size / (size - 1)
            yield from ((f"{name}/({name}-1)", ratio), (f"({name}-1)/{name}", 1 / ratio))
            yield f"√({name}/({name}-1))", math.sqrt(ratio)
            yield f"√(({name}-1)/{name})", math.sqrt(1 / ratio)
        for tile in TILES if size > 0 else ():
            padded = -(-size // tile) * tile
            yield f"{name} / ({name} rounded up to {tile})", size / padded
            yield f"({name} rounded up to {tile}) / {name}", padded / size


def _factors(
    seen: ObservedCase, name: str, wrong: BoolArray, also: Relation | None
) -> Iterator[tuple[Relation, Float64Array]]:
    expected, actual = seen.expected[name], seen.actual[name]
    usable = wrong & np.isfinite(actual) & np.isfinite(expected) & (np.abs(expected) > 0)
    if usable.any():
        ratio = float(np.median(actual[usable] / expected[usable]))
        if np.isfinite(ratio) and ratio != 0.0:
            shown = f"{ratio:.{DIGITS.get(seen.dtypes[name], 5)}g}"
            sentence = f"actual is {shown} × expected"
            yield Relation("factor", "", shown, sentence), float(shown) * expected
        difference = float(np.median(actual[usable] - expected[usable]))
        shown = f"{difference:.4g}"
        sentence = f"actual is expected + {shown}"
        yield Relation("offset", "", shown, sentence), expected + float(shown)
    elif also is not None and also.kind in ("factor", "offset"):
        # The case passes: only test that its outputs do not contradict the relation.
        try:
            number = float(also.formula)
        except ValueError:
            number = math.nan
        if not math.isnan(number):
            yield also, number * expected if also.kind == "factor" else expected + number
    for formula, factor in factors(seen.dims):
        sentence = f"actual is {formula} × expected"
        yield Relation("factor", "", formula, sentence), factor * expected


def _moves(expected: Float64Array) -> Iterator[tuple[Relation, Float64Array]]:
    shape = expected.shape
    for i, j in itertools.combinations(range(len(shape)), 2):
        if shape[i] == shape[j] > 1:
            axes = f"{i}, {j}"
            sentence = f"actual is expected with axes {i} and {j} swapped"
            yield Relation("transposed", "", axes, sentence), np.swapaxes(expected, i, j)
    for order in itertools.permutations(range(len(shape))) if 1 < len(shape) < 4 else ():
        moved = np.transpose(expected, order)
        if order != tuple(range(len(shape))):
            axes = ", ".join(map(str, order))
            sentence = (
                f"actual holds expected in the order of axes {axes}: reshaped, not transposed"
            )
            yield Relation("reshaped", "", axes, sentence), moved.reshape(shape)
    for axis, size in enumerate(shape):
        if size < 2:
            continue
        sentence = f"actual is expected in reverse order along axis {axis}"
        yield Relation("reversed", "", str(axis), sentence), np.flip(expected, axis)
        for step, words, end in ((1, "before", "first"), (-1, "behind", "last")):
            moved = np.roll(expected, step, axis)
            sentence = f"actual is the expected element 1 {words} along axis {axis}"
            yield Relation("shifted", "", f"1 {words}, axis {axis}", sentence), moved
            blank = np.moveaxis(moved.copy(), axis, 0)
            blank[0 if step == 1 else -1] = 0.0
            formula = f"1 {words}, axis {axis}, 0 {end}"
            yield (
                Relation("shifted", "", formula, f"{sentence}, and 0 at the {end} index"),
                np.moveaxis(blank, 0, axis),
            )
        for tile in (1, *TILES):
            if tile < size:
                source = np.arange(size) % tile
                sentence = f"actual repeats the first {tile} along axis {axis} of expected"
                formula = f"{tile}, axis {axis}"
                yield Relation("repeated", "", formula, sentence), np.take(expected, source, axis)


_STATISTICS: dict[str, Callable[[Float64Array], Float64Array]] = {
    "max": lambda rows: rows.max(-1),
    "min": lambda rows: rows.min(-1),
    "mean": lambda rows: rows.mean(-1),
    "sum": lambda rows: rows.sum(-1),
    "norm": lambda rows: np.sqrt((rows * rows).sum(-1)),
}


def _row_terms(
    seen: ObservedCase, expected: Float64Array
) -> Iterator[tuple[Relation, Float64Array]]:
    for of, array in seen.inputs.items():
        if array.ndim < 2 or not array.shape[-1]:
            continue
        leading = array.shape[:-1]
        if expected.shape not in (leading, array.shape):
            continue
        for what, statistic in _STATISTICS.items():
            row = statistic(array)
            row = row if expected.shape == leading else row[..., None]
            for sign, words in ((-1.0, "minus"), (1.0, "plus")):
                sentence = f"actual is expected {words} the {what} of the row of {of}"
                relation = Relation("row-term", of, f"{words} {what}", sentence)
                yield relation, expected + sign * row


def _halves(seen: ObservedCase, name: str, wrong: BoolArray) -> Iterator[Relation]:
    """Yield a relation if wrong values, but not the correct ones, are exact in a 16-bit format."""
    if seen.dtypes[name] not in ("float32", "float64"):
        return
    actual, expected = seen.actual[name][wrong], seen.expected[name][wrong]
    finite = np.isfinite(actual) & np.isfinite(expected)
    actual, expected = actual[finite], expected[finite]
    if actual.size < 3 or np.unique(expected).size < 3:
        return
    if np.median(np.abs(actual - expected)) > 0.1 * np.median(np.abs(expected)):
        return
    for form in ("float16", "bfloat16"):
        if share_held(actual, form) >= NEARLY_ALL and share_held(expected, form) < 0.5:
            sentence = f"actual holds {form} values: it is summed or rounded in {form}"
            yield Relation("half", "", form, sentence)
            return
