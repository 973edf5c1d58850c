"""Random outputs: tests of parts of an output, such as its rows, columns, tiles and lanes.

An op that is wrong in one part alone changes little of the whole. For example, the last tile has no
dropout, one lane always draws 0, or the second half uses another rate. The choice of the parts does
not depend on the drawn values. The chance that any part of a correct output looks wrong is limited
by a bound, which holds for parts with few terms and for parts with many terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Wide = NDArray[np.float64]
Sums = Callable[[Wide], Wide]

LEAST = 8
"""Least number of elements of a part: fewer cannot prove anything at any usual rate."""
FIRST_BLOCK = 32
FIRST_TILE = 8
LANES = 128
BINS = 8
SAMPLED = 4096
"""Elements from which the borders of bins are taken."""
MOST_LEVELS = 12


class Parts(Struct, frozen=True):
    """Disjoint parts of an output."""

    # Takes the sums over the small parts of a `Division`, as `Division.sums` returns them, and
    # returns the sum over each part
    sums: Sums
    # Takes the number of a part, and returns words that name it in a message. They follow "the
    # elements of 'y'".
    name: Callable[[int], str]


class Division(Struct, frozen=True):
    """A division of an output into small disjoint parts, which can be joined into larger parts."""

    sums: Sums  # Takes an array of the output's shape and returns its sum over each small part
    # Each entry divides the output into parts that consist of one or more small parts
    parts: list[Parts]


def divisions_of(shape: tuple[int, ...], means: Wide | None) -> Iterator[Division]:
    """Yield all divisions of an output into parts.

    The parts are:

    - along each axis: single indices, blocks of 2^k successive indices, and lanes, which are the
      indices with equal remainders modulo 2^k;
    - square tiles of the output as a matrix: all axes but the last are merged into its rows;
    - blocks and lanes of the elements in memory order;
    - if `means` gives each element a mean of its own: elements whose means are similar in value or
      in magnitude.

    If only one axis is longer than 1, the first two kinds are left out.
    """
    size = math.prod(shape)
    if len([n for n in shape if n > 1]) > 1:
        for axis, count in enumerate(shape):
            where = f"of axis {axis}"
            parts = [*_blocks(count, 1, size, where), *_lanes(count, size, where)]
            yield Division(_along(axis, len(shape)), parts)
        yield _tiles(shape)
    yield Division(_every(FIRST_BLOCK), list(_blocks(size, FIRST_BLOCK, size, "in memory")))
    lanes = 1 << (min(LANES, size // LEAST, size // 2).bit_length() - 1) if size >= LEAST else 1
    yield Division(_modulo(lanes), list(_lanes(size, size, "in memory")))
    if means is not None:
        yield from _alike(means, "means")
        yield from _alike(np.abs(means), "magnitudes of means")


def _along(axis: int, rank: int) -> Sums:
    others = tuple(a for a in range(rank) if a != axis)
    return lambda values: values.sum(axis=others)


def _blocks(count: int, first: int, size: int, where: str) -> Iterator[Parts]:
    """Yield divisions of `count` indices into blocks of equal length. The first division has short
    blocks, of `first` indices each. Every further division doubles the length. The `Parts.sums` of
    each division takes the sums over the short blocks. A division is left out if its blocks have
    fewer than `LEAST` of the output's `size` elements. `where` says in messages to which axis the
    indices belong, or that they count elements in memory."""
    length = first
    while length < count:
        if length * (size // count) >= LEAST:
            yield Parts(_every(length // first), _block_name(length, count, where))
        length *= 2


def _every(length: int) -> Sums:
    def sums(values: Wide) -> Wide:
        flat = values.reshape(-1)
        whole = flat.size // length * length
        found = flat[:whole].reshape(-1, length).sum(axis=1)
        return found if whole == flat.size else np.append(found, flat[whole:].sum())

    return sums


def _block_name(length: int, count: int, where: str) -> Callable[[int], str]:
    def name(number: int) -> str:
        first, last = number * length, min(count, (number + 1) * length) - 1
        indices = f"index {first}" if first == last else f"indices {first} to {last}"
        return f"at {indices} {where}"

    return name


def _lanes(count: int, size: int, where: str) -> Iterator[Parts]:
    """Yield divisions of `count` indices into lanes, one division for each modulus 2, 4, 8, ... A
    lane consists of the indices that have the same remainder. A modulus is left out if it exceeds
    `LANES` or half of `count`, or if its lanes would have fewer than `LEAST` of the output's `size`
    elements. The sums over the lanes can be computed from finer sums. Each division's `Parts.sums`
    therefore accepts the sums over single indices, and also the sums over the lanes of a greater
    modulus that is a power of 2. `where` is a text for messages: it says to which axis the indices
    belong, or that they count elements in memory."""
    modulus = 2
    while modulus <= min(LANES, count // 2) and size // modulus >= LEAST:
        yield Parts(_modulo(modulus), _lane_name(modulus, where))
        modulus *= 2


def _modulo(modulus: int) -> Sums:
    """Return a function that sums the elements whose indices are equal modulo `modulus`."""

    def sums(values: Wide) -> Wide:
        flat = values.reshape(-1)
        whole = flat.size // modulus * modulus
        found: Wide = flat[:whole].reshape(-1, modulus).sum(axis=0)
        found[: flat.size - whole] += flat[whole:]
        return found

    return sums


def _lane_name(modulus: int, where: str) -> Callable[[int], str]:
    return lambda number: f"at indices {where} that are {number} modulo {modulus}"


def _tiles(shape: tuple[int, ...]) -> Division:
    """Return the division into square tiles of 2^k rows and columns. All axes but the last are
    merged and form the rows."""
    height, width = math.prod(shape[:-1]), shape[-1]
    parts = []
    length = FIRST_TILE
    while length < min(height, width):
        parts.append(Parts(_joined_tiles(length // FIRST_TILE), _tile_name(length, width)))
        length *= 2

    def sums(values: Wide) -> Wide:
        return _joined(values.reshape(height, width), FIRST_TILE)

    return Division(sums, parts)


def _joined_tiles(length: int) -> Sums:
    return lambda tiles: _joined(tiles, length).reshape(-1)


def _joined(values: Wide, length: int) -> Wide:
    rows = np.add.reduceat(values, np.arange(0, len(values), length), axis=0)
    found: Wide = np.add.reduceat(rows, np.arange(0, rows.shape[1], length), axis=1)
    return found


def _tile_name(length: int, width: int) -> Callable[[int], str]:
    def name(number: int) -> str:
        row, column = divmod(number, -(-width // length))
        return f"in the tile of {length} rows and columns at [{row * length}, {column * length}]"

    return name


def _alike(keys: Wide, what: str) -> Iterator[Division]:
    """Yield a division of the elements into bins by their keys. The bins have about equal counts.
    Equal keys are in the same bin. Nothing is yielded if there are too few finite keys. `what`
    names the keys in messages."""
    flat = keys.reshape(-1)
    known = flat[:: -(-flat.size // SAMPLED)]
    known = known[np.isfinite(known)]
    if known.size < LEAST * BINS:
        return
    edges = np.unique(np.quantile(known, np.arange(1, BINS) / BINS))
    bins = np.searchsorted(edges, flat, side="right")
    ends = [-math.inf, *edges.tolist(), math.inf]

    def sums(values: Wide) -> Wide:
        found = np.bincount(bins, weights=values.reshape(-1), minlength=len(edges) + 1)
        return found.astype(np.float64, copy=False)

    parts = [Parts(_every(joined), _bin_name(ends, joined, what)) for joined in (1, 2, 4)]
    yield Division(sums, parts[: len(edges)])


def _bin_name(ends: list[float], joined: int, what: str) -> Callable[[int], str]:
    def name(number: int) -> str:
        first, last = number * joined, min(len(ends) - 1, (number + 1) * joined)
        return f"with {what} of {ends[first]:.4g} to {ends[last]:.4g}"

    return name


class Series(Struct, frozen=True):
    """Independent terms whose mean is 0 for a correct op."""

    terms: Wide  # one term per element; 0 for elements that are not tested
    rounding: Wide  # largest rounding error of each term
    # Returns the message about a part. Its arguments are the mean of the part's terms, and the
    # words that name the part.
    text: Callable[[float, str], str]
    # How far below and above 0 the terms of a correct op can be, if that is known
    limits: tuple[float, float] | None = None


class Zeros(Struct, frozen=True):
    """The zeros of a random output, and their expected share."""

    marks: NDArray[np.bool_]  # true for the tested elements that are 0
    share: float  # Expected share of zeros among the tested elements
    # Returns the message on a part, given the part's number of zeros, its number of elements and
    # its name
    text: Callable[[int, int, str], str]


class PartEvidence:
    """Evidence that parts of an output are wrong, from sums over their terms.

    The evidence against a part is minus the logarithm of a bound on the probability that a correct
    op gives such a part. The bound holds even if the terms are few and skewed.

    Symbols:

    - t is a term of the part. For a correct op, the terms are independent and have mean 0.
    - L is a positive number such that no term is below -L. Without known limits (see `Series`), it
      is taken from the smallest term.
    - y is a number between 0 and 1.
    - ``c = (-log(1 - y) - y) / y^2``.
    - S is the sum of ``y t / L - c (y t / L)^2`` over the part's terms.

    Every term satisfies ``log(1 + y t / L) >= y t / L - c (y t / L)^2``. Therefore, the mean of
    ``exp(S)`` is at most 1 for a correct op (Fan, Grama and Liu, "Exponential inequalities for
    martingales with applications", 2015). By Markov's inequality, ``exp(S)`` exceeds any 1/p with a
    probability of at most p. So ``exp(-S)`` is the bound for a single y.

    Several values of y are tried, for the terms and for the terms with opposite sign. The evidence
    is the largest S minus the logarithm of the number of tries. In each S, the sum of the terms is
    first reduced by their largest rounding errors.
    """

    def __init__(self, series: Series) -> None:
        self._series = series
        self._squares = np.square(series.terms)
        levels = 2 + math.ceil(math.log2(max(series.terms.size, 2)) / 2)
        shares = 0.5 ** np.arange(1, min(levels, MOST_LEVELS) + 1)[:, None]
        self._shares, self._tried = shares, 2.0 * len(shares)
        self._costs = (-np.log1p(-shares) - shares) / np.square(shares)
        below, above = series.limits or (0.0, 0.0)
        self._below = max(below, -float(series.terms.min(initial=0.0)))
        self._above = max(above, float(series.terms.max(initial=0.0)))

    @property
    def arrays(self) -> tuple[Wide, Wide, Wide]:
        """Return each element's term, the term's square, and the term's largest rounding error. The
        method `of` takes the sums of these numbers over parts of the output."""
        return self._series.terms, self._squares, self._series.rounding

    def of(self, total: Wide, squares: Wide, rounding: Wide) -> Wide:
        """Return the evidence against each part. Each argument has one number per part: the sum,
        over the part, of the terms (`total`), of their squares (`squares`) or of their rounding
        errors (`rounding`); see `arrays`."""
        best = np.zeros_like(total)
        for sign, limit in ((1.0, self._below), (-1.0, self._above)):
            if limit > 0.0:
                rates = self._shares / limit
                found = rates * (sign * total - rounding) - self._costs * np.square(rates) * squares
                best = np.maximum(best, found.max(axis=0))
        return best - math.log(self._tried)


def wrong_part(
    telling: NDArray[np.bool_],
    means: Wide | None,
    series: Sequence[Series],
    zeros: Zeros | None,
    rate: float,
) -> str | None:
    """Describe the part of an output that looks wrong most clearly; return None if none does."""
    divisions = [each for each in divisions_of(telling.shape, means) if each.parts]
    kinds = sum(len(division.parts) for division in divisions)
    tests = kinds * (len(series) + (zeros is not None))
    known = [(one, PartEvidence(one)) for one in series]
    elements = telling.astype(np.float64)
    marks = None if zeros is None else zeros.marks.astype(np.float64)
    clearest, message = 0.0, None
    for division in divisions:
        small = division.sums(elements)
        small_marks = None if marks is None else division.sums(marks)
        small_sums = [[division.sums(array) for array in each.arrays] for _, each in known]
        for parts in division.parts:
            counts = parts.sums(small)
            at_least = math.log(tests * len(counts) / rate)
            for (one, evidence), sums in zip(known, small_sums, strict=True):
                total, *rest = map(parts.sums, sums)
                found = evidence.of(total, *rest)
                at = int(found.argmax())
                if found[at] - at_least > clearest:
                    clearest = float(found[at]) - at_least
                    message = one.text(float(total[at] / counts[at]), parts.name(at))
            if zeros is not None and small_marks is not None:
                some = parts.sums(small_marks)
                found = counts * divergences(some / np.maximum(counts, 1.0), zeros.share)
                found -= math.log(2.0)
                at = int(found.argmax())
                if found[at] - at_least > clearest:
                    clearest = float(found[at]) - at_least
                    message = zeros.text(int(some[at]), int(counts[at]), parts.name(at))
    return message


def divergences(found: Wide, wanted: float) -> Wide:
    """Return, for each share in `found`, its relative entropy to the expected share `wanted`. The
    relative entropy is the exponent of Chernoff's bound."""
    parts = np.zeros_like(found)
    for one, other in ((found, wanted), (1.0 - found, 1.0 - wanted)):
        some = one > 0.0
        logs = np.log(one[some] / other) if other > 0.0 else math.inf
        parts[some] += one[some] * logs
    return parts


Marks = NDArray[np.bool_]

ROUNDINGS = 16.0
"""Largest difference of the factors in one group, in units of the relative spacing."""


class Groups(Struct, frozen=True):
    """One element of each group of elements that share a random draw."""

    # The op's element of each group, and its expected mean
    drawn: Wide
    wanted: Wide
    telling: Marks  # true for each group with a tested element
    what: str  # the phrase that names the groups in messages
    # The failure's message if elements that share a draw in the reference do not share one in the
    # op; empty if there is no failure
    failure: str = ""


def grouped(
    name: str, drawn: Wide, wanted: Wide, telling: Marks, reference: Wide, eps: float
) -> Groups | None:
    """Return one element of each group of elements that the reference drops together. Dropout of
    whole channels, for example, makes one random draw per channel, and sets all elements of the
    channel to 0 or none. The groups are found from the reference's output: elements share a draw
    along an axis if, in each line along this axis, the tested elements are either all 0 or all
    nonzero."""
    axes = _shared_axes(reference == 0.0, telling)
    if not axes:
        return None
    said = f"axis {axes[0]}" if len(axes) == 1 else f"axes {', '.join(map(str, axes))}"
    with np.errstate(all="ignore"):
        factors = np.where(telling, drawn / np.where(telling, wanted, 1.0), np.nan)
        least = np.where(telling, factors, np.inf).min(axis=axes)
        most = np.where(telling, factors, -np.inf).max(axis=axes)
        some: Marks = np.asarray(telling.any(axis=axes))
        apart = some & ~(most - least <= ROUNDINGS * eps * np.abs(most))
    failure = ""
    if apart.any():
        failure = (
            f"elements of {name!r} along {said} do not share a draw, as those of the reference do:"
            f" their factors differ in {int(np.count_nonzero(apart))} of {int(some.sum())} groups"
        )
    first = np.expand_dims(_flat(telling, axes).argmax(axis=-1), -1)
    picked, means = (np.take_along_axis(_flat(a, axes), first, -1)[..., 0] for a in (drawn, wanted))
    return Groups(picked, means, some, f"groups of elements along {said}", failure)


def _shared_axes(zero: Marks, telling: Marks) -> tuple[int, ...]:
    """Return the axes along which elements share a draw. In each line along such an axis, the
    tested elements are either all 0 or all nonzero. Axes of size 1 are left out. If elements share
    a draw along all remaining axes, the result is empty."""
    wide = [axis for axis, size in enumerate(zero.shape) if size > 1]
    no, yes = telling & zero, telling & ~zero
    shared = tuple(axis for axis in wide if not (no.any(axis=axis) & yes.any(axis=axis)).any())
    return () if len(shared) == len(wide) else shared


def _flat(values: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    """Return the values with `axes` merged into a single axis, which comes last."""
    kept = [axis for axis in range(values.ndim) if axis not in axes]
    moved = values.transpose(*kept, *axes)
    joined: NDArray[Any] = moved.reshape(*moved.shape[: len(kept)], -1)
    return joined
