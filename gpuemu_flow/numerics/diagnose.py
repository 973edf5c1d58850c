"""Explain a failing output: where its errors lie, and what they have in common.

Everything is derived from the output, the reference's output and the inputs of one case. To be fast
for large tensors, only samples of limited size are examined. The failing elements, however, are all
counted, per axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.model.types import Json, Tolerance
from gpuemu_flow.numerics.diagnose_moves import conditions, moves
from gpuemu_flow.numerics.diagnose_values import (
    LIKELIEST_OF_LINES,
    line_relations,
    special_values,
    values,
)
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, to_float64
from gpuemu_flow.numerics.finding import TILES, Evidence, Finding, count_along
from gpuemu_flow.numerics.judge import AffineBound, BoolArray, Bound, Rules, judge, judge_integers

# Diagnose by location: rows, columns, tails, tiles, diagonals.


LONGEST_PERIOD = 256
WHOLE = 0.9
"""Share of a region that must fail for it to be wrong as a whole."""
SURE = 0.6
"""Least likelihood of a place that is told although nearly all elements are wrong."""
LEAST_SQUARE = 8
FEWEST_RIGHT = 4  # beside wrong rows or columns: fewer may be right by chance
MOSTLY, FEWEST_IN_TAIL = 0.6, 8
RARE = math.log(20.0)
RARE_LINES = math.log(1000.0)
"""Of rows: what the values of one have done, they have done to all its elements."""
STRAY = 0.02
"""Share of the failing elements that may lie outside of a region."""


class _Region(Struct, frozen=True):
    """The indices of one axis at which elements fail.

    `form` is the pattern of these indices: ``line``, ``tail``, ``head``, ``block``, ``periodic``,
    ``all`` for nearly all indices of the axis, or ``some`` if nothing else applies.
    """

    axis: int
    size: int
    form: str
    start: int
    stop: int
    indices: int
    period: int = 0
    is_last: bool = True  # the axis of columns, or the only one

    @property
    def extent(self) -> int:  # indices of which it is said that elements are wrong there
        return self.stop - self.start if self.form in ("head", "tail", "block") else self.indices

    @property
    def share(self) -> float:
        return self.indices / self.size

    @property
    def is_sure(self) -> bool:
        """Tell whether chance hardly picks these indices of all."""
        n, k = self.size + 1, self.indices + 1
        ways = math.lgamma(n) - math.lgamma(k) - math.lgamma(n - k + 1)
        return ways >= (RARE if self.is_last or self.form == "line" else RARE_LINES)

    @property
    def is_any_line(self) -> bool:  # one of few, which may be wrong for what it holds
        inside = 0 < self.start < self.size - 1
        return self.form == "line" and inside and math.log(self.size) < RARE

    @property
    def certainty(self) -> float:
        """Return the certainty of a region: 1 if chance hardly explains it, else less."""
        ways = math.log(self.size) * min(self.indices, self.size - self.indices)
        return min(1.0, ways / RARE)

    def evidence(self, failing: int) -> float:
        """Return how little chance explains that so many failing elements lie here."""
        if self.form not in ("head", "tail") or self.indices > LEAST_SQUARE:
            return RARE
        return math.log(math.comb(self.size, self.indices) / 2) * failing / self.indices


def places(evidence: Evidence) -> list[Finding]:
    """Describe where the failing elements lie, likeliest description first."""
    if evidence.total == 1:
        return []
    if evidence.count == 1:
        return _one_element(evidence)
    mask = evidence.mask
    counts = [count_along(mask, axis) for axis in range(mask.ndim)]
    last = mask.ndim - 1
    regions = [_region(axis, h, axis == last) for axis, h in enumerate(counts) if h.size > 1]
    candidates = [
        _by_axes(evidence, regions),
        *(_whole_lines(evidence, region, counts[region.axis]) for region in regions),
        _memory_tail(evidence, regions),
        _diagonal(evidence),
    ]
    found = [finding for finding in candidates if finding is not None]
    share = evidence.count / evidence.total
    if share >= WHOLE:
        found = [finding for finding in found if finding.likelihood > SURE]
    elif _is_all_but_zeros(evidence):
        return []  # right zeros may be spared by any bug
    found.sort(key=lambda finding: -finding.likelihood)
    return found


def _one_element(evidence: Evidence) -> list[Finding]:
    position = int(evidence.failing.positions[0])
    which = {0: "first", evidence.total - 1: "last"}.get(position, "")
    if not which or evidence.total < 2 * LEAST_SQUARE or not evidence.plain:
        return []
    index = [int(i) for i in np.unravel_index(position, evidence.shape)]
    sentence = f"only the {which} element of {evidence.total} is wrong, at {index}"
    return [Finding("one-element", sentence, {"index": index, "of": evidence.total}, 0.9)]


def _is_all_but_zeros(evidence: Evidence) -> bool:
    most = evidence.count >= WHOLE * (evidence.total - evidence.zeros)
    return bool(evidence.zeros and most and evidence.failing.expected.all())


def _region(axis: int, hits: NDArray[np.int64], is_last: bool) -> _Region:
    """Describe how the failing elements are arranged along one axis."""
    size = hits.size
    hit = hits > 0
    strong = hits > STRAY * hits.max()
    if hits[strong].sum() >= (1.0 - STRAY) * hits.sum():
        hit = strong
    indices = np.flatnonzero(hit)
    start, stop = int(indices[0]), int(indices[-1]) + 1
    number = indices.size
    form, period = "some", 0
    if number == size:
        form = "all"
    elif number == 1:
        form = "line"
    elif number >= WHOLE * (stop - start):
        if stop - start > (1.0 - STRAY) * size:
            form = "head" if start == 0 and stop < size else "tail" if start else "all"
        elif stop == size:
            form = "tail"
        else:
            form = "head" if start == 0 else "block"
    else:
        period = _period(hit, indices)
        form = "periodic" if period else "some"
    region = _Region(axis, size, form, start, stop, number, period, is_last)
    return replace(region, form="some") if period and not region.is_sure else region


def _period(hit: NDArray[np.bool_], indices: NDArray[np.intp]) -> int:
    """Return the shortest period with which the failing indices of an axis recur; 0 if none.

    Two conditions hold for the remainders that the failing indices leave modulo the period. They
    are at most half of all possible remainders, and nearly all indices that leave them fail.
    """
    size = hit.size
    for period in range(2, min(LONGEST_PERIOD, size // 2) + 1):
        remainders = np.bincount(indices % period, minlength=period)
        possible = (size - np.arange(period) + period - 1) // period
        used = remainders > 0
        if used.sum() > period // 2 or indices.size < 3:
            continue
        if indices.size >= WHOLE * possible[used].sum():
            return period
    return 0


def _by_axes(evidence: Evidence, regions: list[_Region]) -> Finding | None:
    """Describe in one sentence the axes along which failing elements form a region."""
    confined = [region for region in regions if region.form not in ("all", "some")]
    if sum(region.evidence(evidence.count) for region in confined) < RARE:
        return None
    confined = sorted(_told(evidence, confined), key=lambda region: region.share)
    density = _density(evidence, confined)
    if density < WHOLE:
        confined = [region for region in confined if region.certainty >= 1.0]
        density = _density(evidence, confined)
    if not confined or density < MOSTLY or (density < WHOLE and confined[0].share > WHOLE):
        return None
    if not evidence.plain and density < WHOLE:
        return None
    main = confined[0]
    where = " and ".join(_describe(evidence, region) for region in confined)
    extent = "throughout" if density >= WHOLE else f"in {density:.0%} of the elements there"
    sentence = f"wrong only in {where}, {extent}"
    numbers: dict[str, Json] = {
        "axis": main.axis,
        "size": main.size,
        "start": main.start,
        "stop": main.stop,
        "tile": _tile(main),
        "period": main.period,
        "density": density,
    }
    # A region that spans most of an axis, or that is hardly filled, says less.
    likelihood = 0.55 + 0.2 * density + 0.2 * (1.0 - main.share)
    return Finding(main.form, sentence, numbers, likelihood * (0.6 + 0.4 * main.certainty))


def _density(evidence: Evidence, regions: list[_Region]) -> float:
    inside = math.prod(region.share for region in regions) * evidence.total
    return min(1.0, evidence.count / inside)


def _told(evidence: Evidence, regions: list[_Region]) -> list[_Region]:
    """Return the regions of whose borders the right elements tell, too. Few rows of an output of
    more axes may be wrong by chance; where values hide errors, any may."""
    rows = evidence.mask.reshape(evidence.rows, -1).any(axis=1)
    wrong = int(np.count_nonzero(rows))
    least = RARE if evidence.plain else RARE_LINES
    # Of one axis of several, a vector of lengths may tell.
    own = [a.size for a in evidence.inputs.values() if a.ndim == 1 and a.dtype.kind in "iu"]
    own = own if len(evidence.shape) > 2 else []
    others = [region for region in regions if not (region.is_last or region.size in own)]
    told = [region for region in regions if region.is_last]
    beside = sum(wrong * (region.size - region.extent) for region in told)
    sure = evidence.plain or _weight(told, evidence.count, beside) >= least
    told = told if sure and beside >= FEWEST_RIGHT else []
    right = rows.size - wrong
    outside = min((rows.size // r.size * (r.size - r.extent) for r in others), default=0)
    if outside * (told[0].indices if told else evidence.columns) < FEWEST_RIGHT:
        return told
    held = not evidence.indexed and any(region.is_any_line for region in others)
    sure = evidence.plain and len(evidence.shape) < 3 and not held
    return told + others if sure or _weight(others, wrong, right) >= least else told


def _weight(regions: list[_Region], wrong: int, right: int) -> float:
    """Return how little chance explains that wrong parts lie inside, and right ones outside."""
    share = math.prod(region.share for region in regions)
    return max(-wrong * math.log(share), -right * math.log(1.0 - share)) if share < 1.0 else 0.0


def _tile(region: _Region) -> int:
    """Return the largest usual tile size that divides the start of a tail, or the end of a head.

    The result is 0 if no size does, or if the region is neither a tail nor a head.
    """
    border = region.start if region.form == "tail" else region.stop
    if region.form not in ("tail", "head") or not border:
        return 0
    return next((tile for tile in TILES if border % tile == 0), 0)


def _axis_name(evidence: Evidence, axis: int) -> tuple[str, str, str]:
    """Return words for one index and for several of an axis, and for the axis: (row, rows, '')."""
    ndim = len(evidence.shape)
    if ndim == 1:
        return "element", "elements", ""
    if axis == ndim - 1:
        return "column", "columns", ""
    return ("row", "rows", "") if ndim == 2 else ("index", "indices", f" along axis {axis}")


def _describe(evidence: Evidence, region: _Region) -> str:
    singular, plural, along = _axis_name(evidence, region.axis)
    size, start, stop = region.size, region.start, region.stop
    span = f"{plural} {start} to {stop - 1} of {size}{along}"
    if region.form == "line":
        which = {0: " (the first)", size - 1: " (the last)"}.get(start, "")
        return f"{singular} {start} of {size}{along}{which if region.is_sure else ''}"
    if region.form == "periodic":
        residues = _runs(sorted({i % region.period for i in _members(evidence, region)}))
        return f"{plural} {residues} of every {region.period}{along}"
    if region.form == "block" or not region.is_sure:
        return span
    return f"{span} ({_border_hint(region)})"


def _border_hint(region: _Region) -> str:
    """Describe the border of a head or a tail of an axis, or else its length."""
    tile, tail = _tile(region), region.form == "tail"
    if region.indices > 1 and region.size - (region.stop - region.start) == 1:
        return f"all but the {'first' if tail else 'last'}"
    if tile:
        return f"{'from' if tail else 'up to'} a multiple of {tile}{' on' if tail else ''}"
    return f"the {'last' if tail else 'first'} {region.stop - region.start}"


def _members(evidence: Evidence, region: _Region) -> list[int]:
    hits = np.flatnonzero(count_along(evidence.mask, region.axis))
    return [int(i) for i in hits[:4096]]


def _runs(values: list[int]) -> str:
    """Format ascending integers, consecutive ones as ``2 to 5``; show at most four ranges."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    shown = [f"{a}" if a == b else f"{a} to {b}" for a, b in runs[:4]]
    return ", ".join(shown) + (", …" if len(runs) > 4 else "")


def _whole_lines(evidence: Evidence, region: _Region, hits: NDArray[np.int64]) -> Finding | None:
    """Find scattered rows or columns, each wrong throughout."""
    if region.form not in ("some", "all"):
        return None
    full = evidence.total // region.size
    whole = np.flatnonzero(hits >= WHOLE * full)
    if full < 4 or not 0 < whole.size <= WHOLE * region.size:
        return None
    if hits[whole].sum() < (1.0 - STRAY) * evidence.count:
        return None
    rows = evidence.rows if region.is_last else evidence.rows // region.size
    if not evidence.plain and (region.size < LEAST_SQUARE or rows < 2):
        return None  # of few lines, or of one row, values may tell
    _, plural, along = _axis_name(evidence, region.axis)
    shown = _runs([int(i) for i in whole[:64]])
    sentence = f"{whole.size} of {region.size} {plural}{along} are wrong throughout: {shown}"
    numbers = {"axis": region.axis, "lines": whole.size, "size": region.size}
    return Finding("whole-lines", sentence, numbers, 0.75)


def _memory_tail(evidence: Evidence, regions: list[_Region]) -> Finding | None:
    """Find a run of failures, in memory order, from the middle of a row to the last element."""
    first, last = int(evidence.failing.positions[0]), int(evidence.failing.positions[-1])
    length = evidence.total - first
    if last < evidence.total - 1 or len(evidence.shape) < 2 or first % evidence.columns == 0:
        return None
    # Some elements pass by chance: the missing store would not have changed them.
    if length < FEWEST_IN_TAIL or evidence.count < WHOLE * length:
        return None
    if length > 2 * evidence.columns and regions[-1].form != "all":
        return None  # columns, not memory
    tile = next((tile for tile in (32768, 4096, 1024, *TILES) if first % tile == 0), 0)
    if not tile:
        return None
    sentence = (
        f"wrong from element {first} = {first // tile} × {tile} in memory order to the last "
        f"({length} elements)"
    )
    numbers: dict[str, Json] = {"start": first, "length": length, "tile": tile}
    return Finding("memory-tail", sentence, numbers, 0.95)


def _diagonal(evidence: Evidence) -> Finding | None:
    """Find failures only on the diagonal of the last two axes, or on one side of it."""
    if len(evidence.shape) < 2 or min(evidence.shape[-2:]) < LEAST_SQUARE or evidence.count < 3:
        return None
    height, width = evidence.shape[-2:]

    def distances(positions: NDArray[np.intp]) -> NDArray[np.intp]:
        result: NDArray[np.intp] = positions % width - positions // width % height
        return result

    wrong, right = distances(evidence.failing.positions), distances(evidence.passing.positions)
    low, high = int(wrong.min()), int(wrong.max())
    if low == 0 and high == 0:
        side = "on the diagonal"
    elif low >= 0:
        side = "on and above the diagonal" if low == 0 else "above the diagonal"
    elif high <= 0:
        side = "on and below the diagonal" if high == 0 else "below the diagonal"
    else:
        return None

    def density(low: int, high: int) -> float:
        there = np.count_nonzero((wrong >= low) & (wrong <= high)) * evidence.count
        others = np.count_nonzero((right >= low) & (right <= high))
        others *= evidence.total - evidence.count
        return float(there * right.size / max(there * right.size + others * wrong.size, 1))

    # A tail of columns lies above the diagonal too, but not beside it.
    near = min(height, width) // 4
    beside = density(max(low, -near), min(high, near))
    filled = density(low, high)
    if min(beside, filled) < MOSTLY:
        return None
    sentence = f"wrong only {side} of the last two axes ({filled:.0%} of the elements there)"
    numbers = {"low": low, "high": high, "density": filled}
    return Finding("diagonal", sentence, numbers, 0.9 * filled)


MOST_FINDINGS = 3

JUDGED_AT_ONCE = 1 << 16


def diagnose(
    actual: NDArray[Any],
    expected: NDArray[Any],
    failing: BoolArray | Tolerance | Bound,
    *,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    rules: Rules | None = None,
    limit: int = MOST_FINDINGS,
    plain: bool = True,
) -> tuple[Finding, ...]:
    """Describe the wrong elements of one output, likeliest explanation first.

    `plain` says that no input has values that may hide an error; else, less is concluded.

    >>> expected = np.arange(1.0, 13.0).reshape(3, 4)
    >>> [finding.sentence for finding in diagnose(2 * expected, expected, Tolerance(0.0, 1e-6))]
    ['actual = 2.000 × expected']
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape or not actual.size:
        return ()
    if dtype_name(actual.dtype) is None or dtype_name(expected.dtype) is None:
        return ()
    if isinstance(failing, Tolerance):
        failing = AffineBound(failing.atol, failing.rtol)
    if isinstance(failing, np.ndarray):
        mask = np.asarray(failing, bool)
    else:
        mask = failing_elements(
            actual, expected, failing, rules or _default_rules(actual, expected)
        )
    if mask.shape != actual.shape:
        return ()
    known = {n: a for n, a in (inputs or {}).items() if dtype_name(a.dtype) is not None}
    evidence = Evidence(actual, expected, mask, known, plain=plain)
    if not evidence.count:
        return ()
    with np.errstate(all="ignore"):
        return _likeliest(_aspects(evidence), limit)


def _default_rules(actual: NDArray[Any], expected: NDArray[Any]) -> Rules:
    wider = expected.dtype != actual.dtype
    return Rules(clip=FLOAT_LIMITS.get(dtype_name(actual.dtype) or "") if wider else None)


def failing_elements(
    actual: NDArray[Any], expected: NDArray[Any], bound: Bound, rules: Rules
) -> BoolArray:
    """Return the mask of the elements that fail, as the comparison judges them."""
    flat_actual, flat_expected = actual.reshape(-1), expected.reshape(-1)
    mask = np.empty(actual.size, bool)
    exact = actual.dtype == expected.dtype and actual.dtype.kind in "iu"
    for start in range(0, actual.size, JUDGED_AT_ONCE):
        where = slice(start, min(start + JUDGED_AT_ONCE, actual.size))
        a, e = flat_actual[where], flat_expected[where]
        if exact:
            mask[where] = judge_integers(a, e, bound, where).failed
        else:
            mask[where] = judge(to_float64(a), to_float64(e), bound, where, rules).failed
    return mask.reshape(actual.shape)


def _of_finite_elements(evidence: Evidence) -> list[Finding]:
    """Find what the failing elements with finite values have in common.

    The likelihood of each finding is multiplied by the share of these elements among all failing
    elements.
    """
    share = len(evidence.finite) / len(evidence.failing)
    of_values, of_moves = [*values(evidence)], [*moves(evidence)]
    best = max((each.likelihood for each in (*of_values, *of_moves)), default=0.0)
    of_lines = line_relations(evidence) if best < LIKELIEST_OF_LINES else []
    found = [*of_values, *of_lines, *of_moves]
    return [replace(finding, likelihood=finding.likelihood * share) for finding in found]


def _circumstances(evidence: Evidence) -> list[list[Finding]]:
    """Return findings on the places of the wrong elements, and on their values.

    In one case, places and values may say the same of the elements. Strategies draw rows of a kind
    at regular distances, so of scattered rows values tell more; of others, places do.
    """
    where, which = places(evidence), conditions(evidence)
    main = max(where, key=lambda finding: finding.likelihood, default=None)
    by_border = [finding for finding in which if "border" in finding.numbers]
    if main is None:
        return [where, which]
    scattered = main.kind in ("periodic", "whole-lines")
    of_rows = [finding for finding in which if finding.kind == "input-row"]
    if scattered and main.numbers["axis"] != evidence.mask.ndim - 1 and of_rows:
        return [of_rows]
    return [where, [finding for finding in which if finding not in by_border]]


# At most one finding of each: NaN and Inf, other wrong values, their places, their conditions.
def _aspects(evidence: Evidence) -> Iterable[Iterable[Finding]]:
    yield special_values(evidence)
    yield _of_finite_elements(evidence)
    yield from _circumstances(evidence)


def _likeliest(aspects: Iterable[Iterable[Finding]], limit: int) -> tuple[Finding, ...]:
    """Return the likeliest finding of each group in `aspects`, at most `limit`, likeliest first.

    A group holds the findings on one aspect of the errors, such as the places where they occur.
    """
    best = [
        max(found, key=lambda finding: finding.likelihood) for found in map(list, aspects) if found
    ]
    return tuple(sorted(best, key=lambda finding: -finding.likelihood)[:limit])
