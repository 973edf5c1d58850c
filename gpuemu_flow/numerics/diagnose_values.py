"""Diagnose by value: NaN, zeros, a constant, a multiple of the right values, or rounded values.

==========================  ======================================================================
kind                        the failing elements
==========================  ======================================================================
``nan``, ``inf``            are NaN (Inf) where the reference is not
``nan-lost``, ``inf-lost``  are not NaN (Inf) where the reference is
``saturated``               are the dtype's largest value where the reference is Inf
``inf-sign``                are Inf of the other sign
``zeros``, ``constant``     all have one value
``clipped``                 all have one magnitude
``flushed``                 are zero where the reference is subnormal
``factor``, ``offset``      are the right values times, or plus, one number
``sign``                    have the right magnitude and, in part, the wrong sign
``narrower``                are all representable in a narrower format
``rounding``                are a few ulp off, in both directions
``wrapped``                 are integers that agree modulo a power of two
==========================  ======================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from msgspec import Struct

from gpuemu_flow.model.types import DTYPES
from gpuemu_flow.numerics.dtypes import (
    FLOAT_LIMITS,
    Float64Array,
    dtype_name,
    share_held,
    spacing,
    to_float64,
)
from gpuemu_flow.numerics.finding import TILES, Evidence, Finding, Points, Positions
from gpuemu_flow.numerics.judge import BoolArray

MOST = 0.95
"""Share of the failing elements that a relation must hold for."""

FEW = 4
"""Fewer elements than this can follow any rule by chance."""

UNWRITTEN = "what memory is filled with before anyone writes it"

LEAST_SHARE = 0.05
"""Share of the failing elements below which NaN and Inf are not mentioned."""

MOST_ROUNDINGS, OF_8_BITS = 16.0, 1.0
"""Largest median error, in ulp of a narrower format, that is ascribed to rounding to it; of a
format of 8 bits, which holds many a right value."""

CLOSE = 1e-3
"""Largest relative deviation from a common factor or offset, unless rounding explains more."""

EXACT = 1e-5  # as `CLOSE`, of offsets of values that are not plain

SIMPLE_SLACK, EXOTIC_SLACK = 2e-2, 1e-3
"""Largest relative residual at which a factor gets a simple name, and a less common one."""


def values(evidence: Evidence) -> list[Finding]:
    """Describe the failing elements whose actual and expected values are finite."""
    points = evidence.finite
    if not len(points):
        return []
    if DTYPES[evidence.dtype].kind in ("int", "uint"):
        return list(_integers(evidence, points))
    constant = list(_constant(evidence, points))
    return constant or list(_relations(evidence, points))


def special_values(evidence: Evidence) -> Iterator[Finding]:
    """Find elements where NaN or Inf is unexpected or missing, or where Inf has the wrong sign."""
    points = evidence.failing
    actual, expected = points.actual, points.expected
    nan_a, nan_e = np.isnan(actual), np.isnan(expected)
    inf_a, inf_e = np.isinf(actual), np.isinf(expected)
    largest = evidence.fmt.max if evidence.fmt is not None else math.inf
    saturated = inf_e & (actual == np.copysign(largest, expected))
    groups = (
        ("nan", nan_a & ~nan_e, "NaN"),
        ("inf", inf_a & ~inf_e & ~nan_e, "Inf"),
        ("nan-lost", nan_e & ~nan_a, ""),
        ("saturated", saturated, "the dtype's largest value"),
        ("inf-lost", inf_e & ~inf_a & ~nan_a & ~saturated, ""),
        ("inf-sign", inf_e & inf_a, "Inf"),
    )
    for kind, chosen, what in groups:
        share = float(np.count_nonzero(chosen)) / len(points)
        moved = kind != "nan" and share <= MOST and evidence.given_infinite
        if share < LEAST_SHARE or moved:  # an input's Inf in a wrong place looks like an overflow
            continue
        given = what or _values_given(actual[chosen])
        if _common(actual[chosen]) in evidence.unwritten:
            given = UNWRITTEN
        wanted = _what_is_wanted(expected[chosen], kind)
        extent = "" if share > MOST else f" in {share:.0%} of the wrong elements"
        sentence = f"actual is {given} where the reference is {wanted}{extent}"
        numbers = {"share": share, "value": _common(actual[chosen])}
        yield Finding(kind, sentence, numbers, 0.3 + 0.65 * share)


def _common(values: Float64Array) -> float | None:
    """Return the value common to all; None if they differ."""
    first = float(values[0])
    same = np.isnan(values).all() if math.isnan(first) else (values == first).all()
    return first if same else None


def _values_given(values: Float64Array) -> str:
    common = _common(values)
    if common is not None:
        return f"{common:.6g}"
    finite = values[np.isfinite(values)]
    if finite.size == values.size:
        return f"finite ({finite.min():.4g} to {finite.max():.4g})"
    return "Inf or finite" if finite.size else "Inf of either sign"


def _what_is_wanted(expected: Float64Array, kind: str) -> str:
    if kind == "nan-lost":
        return "NaN"
    if kind == "inf-sign":
        return "Inf of the other sign"
    infinite = np.isinf(expected)
    if infinite.all():
        return "Inf" if (expected > 0).all() else "-Inf" if (expected < 0).all() else "±Inf"
    return "finite" if not infinite.any() else "finite or Inf"


def _constant(evidence: Evidence, points: Points) -> Iterator[Finding]:
    """Yield a finding if nearly all failing elements are 0, or share one value or one magnitude."""
    actual, expected = points.actual, points.expected
    if len(points) < FEW or np.ptp(expected) == 0.0:
        return
    zero_share = float(np.count_nonzero(actual == 0.0)) / len(points)
    if zero_share >= MOST:
        least = evidence.fmt.smallest_normal if evidence.fmt is not None else 0.0
        if (np.abs(expected) < least).all():
            sentence = f"actual is 0 where the reference is subnormal (below {least:.3g})"
            yield Finding("flushed", sentence, {"below": least}, 0.95)
            return
        yield Finding("zeros", "the wrong elements are 0", {"share": zero_share}, 0.9)
        return
    common = float(np.median(actual))
    share = float(np.count_nonzero(actual == common)) / len(points)
    if share >= MOST:
        unwritten = common in evidence.unwritten
        said = f"hold {UNWRITTEN}, {common:.6g}" if unwritten else f"all are {common:.6g}"
        sentence = f"the wrong elements {said}"
        yield Finding("constant", sentence, {"value": common, "share": share}, 0.85)
        return
    size = float(np.median(np.abs(actual)))
    share = float(np.count_nonzero(np.abs(actual) == size)) / len(points)
    if share >= MOST and np.abs(expected).min() >= size:
        name = next((f for f, limits in FLOAT_LIMITS.items() if limits.max == size), "")
        meaning = f" ({name}'s largest value)" if name else ""
        sentence = f"the wrong elements are clipped to ±{size:.6g}{meaning}"
        yield Finding("clipped", sentence, {"value": size, "format": name}, 0.95)


def _relations(evidence: Evidence, points: Points) -> Iterator[Finding]:
    narrower = _narrower(evidence, points) if evidence.plain else None
    if narrower is not None:
        yield narrower
    factor, offset = _factor(evidence, points), _offset(evidence, points)
    for finding in (factor, offset, _sign(points)):
        if finding is not None:
            yield finding
    if factor is None and offset is None and evidence.plain:
        rounding = _rounding(evidence, points)
        if rounding is not None:
            yield rounding


def _factor(evidence: Evidence, points: Points) -> Finding | None:
    """Find that the wrong values are off by a constant factor c: ``actual = c * expected``."""
    fitted = fit_factor(points.actual, points.expected, eps=evidence.eps)
    if fitted is None:
        return None
    factor, residual = fitted
    name = factor_name(factor, evidence.dims, residual)
    places = max(3, 2 - math.floor(math.log10(abs(factor - 1.0))))  # which tell it from 1
    shown = f"{factor:.{places}f}" if 0.01 < abs(factor) < 1000 else f"{factor:.4g}"
    meaning = f" ({name})" if name and not name.isdigit() else ""
    rest = f", to within {residual:.1e}" if residual else ""
    sentence = f"actual = {shown}{meaning} × expected{rest}"
    numbers = {"factor": factor, "residual": residual, "meaning": name}
    return Finding("factor", sentence, numbers, 0.98 if name else 0.93)


def fit_factor(
    actual: Float64Array, expected: Float64Array, least: int = FEW, eps: float = 0.0
) -> tuple[float, float] | None:
    """Fit a factor between finite values.

    A factor fits if the error that remains for nearly all values is at most `CLOSE` or that of two
    roundings of a format with `eps`, and at most a twentieth of the error that the factor explains.
    """
    usable = np.abs(expected) > np.abs(expected).max(initial=0.0) * 2.0**-40
    actual, expected = actual[usable], expected[usable]
    if expected.size < least or np.ptp(np.abs(expected)) <= 1e-3 * np.abs(expected).max():
        return None
    factor = float(np.median(actual / expected))
    if not math.isfinite(factor) or factor in (0.0, 1.0):
        return None
    rest = np.abs(actual - factor * expected) / np.abs(factor * expected)
    residual = float(np.quantile(rest, MOST))
    explained = abs(factor - 1.0) / max(abs(factor), 1.0)
    return (factor, residual) if residual <= min(max(CLOSE, 2.0 * eps), explained / 20) else None


def factor_name(factor: float, dims: tuple[int, ...], residual: float) -> str:
    """Return a name that tells a factor's likely origin, such as ``2`` or ``1/√64``; '' if none.

    Factors that follow from `dims`, the sizes of axes, are tried, too. `residual` is the relative
    error of the fit. The value of a name may differ from `factor` by up to three times this error.
    If `residual` is large, only simple names are tried, or none.
    """
    slack = max(3.0 * residual, 1e-6)
    for most, factors in ((SIMPLE_SLACK, _simple_factors(dims)), (EXOTIC_SLACK, _others(dims))):
        if slack > most:
            break
        for name, value in factors:
            if abs(factor / value - 1.0) <= slack:
                return name
    return ""


def _simple_factors(dims: tuple[int, ...]) -> Iterator[tuple[str, float]]:
    yield from (("sign flipped", -1.0), ("2", 2.0), ("1/2", 0.5), ("10", 10.0), ("1/10", 0.1))
    for size in dims:
        if size > 1:
            yield f"√{size}", math.sqrt(size)
            yield f"1/√{size}", 1.0 / math.sqrt(size)


def _others(dims: tuple[int, ...]) -> Iterator[tuple[str, float]]:
    """Yield likely factors, each as a name and a value.

    - For each dim n: n, and the ratios n/(n-1) and n/p, where p is n rounded up to a multiple of a
      tile size.
    - The square roots of these ratios.
    - The inverses of all of these factors.
    - Common constants, such as 3 and √2.
    """
    for size in dims:
        if size < 2:
            continue
        yield f"{size}, a dim", float(size)
        yield f"1/{size}, a dim", 1.0 / size
        padded = dict.fromkeys(-(-size // tile) * tile for tile in TILES)
        for other in (size - 1, *(p for p in padded if p != size)):
            for top, bottom in ((size, other), (other, size)):
                yield f"{top}/{bottom}", top / bottom
                yield f"√({top}/{bottom})", math.sqrt(top / bottom)
    yield from (("3", 3.0), ("4", 4.0), ("1/3", 1 / 3), ("2/3", 2 / 3), ("3/2", 1.5))
    yield from (("1/4", 0.25), ("1.1", 1.1), ("log2 e", 1 / math.log(2)), ("ln 2", math.log(2)))
    yield from (("√2", math.sqrt(2)), ("1/√2", math.sqrt(0.5)))


def _offset(evidence: Evidence, points: Points) -> Finding | None:
    """Find that the wrong values are off by a constant c: ``actual = expected + c``."""
    fitted = fit_offset(points.actual, points.expected, eps=evidence.eps)
    if fitted is None:
        return None
    offset, residual = fitted
    if not evidence.plain and residual > EXACT * abs(offset):
        return None  # of large values that are nearly equal, errors are nearly equal, too
    sentence = f"actual = expected {'+' if offset > 0 else '−'} {abs(offset):.4g}"
    if residual:
        sentence += f", to within {residual:.1e}"
    return Finding("offset", sentence, {"offset": offset, "residual": residual}, 0.92)


def fit_offset(
    actual: Float64Array, expected: Float64Array, least: int = FEW, eps: float = 0.0
) -> tuple[float, float] | None:
    """Fit an offset between finite values; return it and its residual (95th percentile).

    Return None if no offset fits, or if there are fewer than `least` values.
    """
    if expected.size < least or np.ptp(expected) == 0.0:
        return None
    difference = actual - expected
    offset = float(np.median(difference))
    if not math.isfinite(offset) or offset == 0.0:
        return None
    residual = float(np.quantile(np.abs(difference - offset), MOST))
    rounded = 2.0 * eps * float(np.abs(expected).max())
    close = max(CLOSE * abs(offset), rounded)
    return (offset, residual) if residual <= min(abs(offset) / 20, close) else None


def _sign(points: Points) -> Finding | None:
    """Find right magnitudes with wrong signs."""
    actual, expected = points.actual, points.expected
    if len(points) < FEW or np.ptp(np.abs(expected)) == 0.0:
        return None
    near = np.abs(np.abs(actual) - np.abs(expected)) <= 1e-3 * np.abs(expected)
    flipped = near & (np.signbit(actual) != np.signbit(expected))
    share = float(np.count_nonzero(flipped)) / len(points)
    if share < MOST:
        return None
    positive = "positive" if (actual[flipped] > 0).all() else "of the other sign"
    sentence = f"right in magnitude, but {positive}"
    return Finding("sign", sentence, {"share": share}, 0.9)


def _narrower(evidence: Evidence, points: Points) -> Finding | None:
    """Find a narrower float format to which the op seems to have rounded the failing elements.

    The format represents nearly all actual values exactly, but fewer than half of the expected
    values.
    """
    if evidence.fmt is None or len(points) < FEW:
        return None
    for name in ("float8_e5m2", "bfloat16", "float16", "float32"):
        fmt = FLOAT_LIMITS[name]
        if fmt.mantissa_bits >= evidence.fmt.mantissa_bits:
            continue
        if share_held(points.actual, name) >= MOST and share_held(points.expected, name) < 0.5:
            error = np.abs(points.actual - points.expected) / spacing(points.expected, fmt)
            ulps = float(np.median(error))
            sizes = np.unique(np.abs(points.actual[points.actual != 0.0]))
            if ulps > (OF_8_BITS if fmt.bits == 8 else MOST_ROUNDINGS) or sizes.size < 2 * FEW:
                continue
            sentence = (
                f"the wrong elements are all exact {name} values, {ulps:.2g} of its ulp off: "
                f"rounded to {name} on the way"
            )
            return Finding("narrower", sentence, {"format": name, "median_ulp": ulps}, 0.9)
    return None


def _rounding(evidence: Evidence, points: Points) -> Finding | None:
    """Find errors of both signs with the size of a few roundings."""
    if evidence.fmt is None or len(points) < 2 * FEW:
        return None
    error = points.actual - points.expected
    positive = float(np.count_nonzero(error > 0)) / error.size
    ulps = float(np.median(np.abs(error) / spacing(points.expected, evidence.fmt)))
    if not 0.15 <= positive <= 0.85 or ulps > 64:
        return None
    sentence = f"off by {ulps:.2g} {evidence.dtype} ulp in the median, in both directions: "
    sentence += "rounding, as of a sum kept in too narrow a format"
    numbers = {"median_ulp": ulps, "positive_share": positive}
    return Finding("rounding", sentence, numbers, 0.6)


def _integers(evidence: Evidence, points: Points) -> Iterator[Finding]:
    """Yield findings on failing integers that differ from the expected ones in a regular way.

    A finding of kind ``offset`` says that all differences are the same number. One of kind
    ``wrapped`` says that nearly all are multiples of a power of two. Without a finding of kind
    ``wrapped``, those of `_constant` are yielded, too.
    """
    if len(points) < FEW:
        return
    difference = points.actual - points.expected
    common = _common(difference)
    if common is not None:
        sentence = f"actual = expected {'+' if common > 0 else '−'} {abs(common):.0f}"
        yield Finding("offset", sentence, {"offset": common, "residual": 0.0}, 0.95)
    same: BoolArray
    for bits in (32, 16, 8, 7, 6, 5, 4, 3):
        same = difference % 2.0**bits == 0.0
        if same.mean() >= MOST and np.ptp(points.expected[same]) > 0.0:
            sentence = f"actual and expected agree modulo {2**bits}: an index or a type wraps there"
            yield Finding("wrapped", sentence, {"modulus": 2**bits}, 0.9)
            return
    yield from _constant(evidence, points)


Fit = Callable[[Float64Array, Float64Array, int, float], tuple[float, float] | None]

LIKELIEST_OF_LINES = 0.9
"""Greatest likelihood of a finding of `line_relations`, which takes longer than the others."""

MOST_LINES = 0.9
"""Share of the lines (those with enough wrong elements) that must fit."""

LEAST, FREEDOM = 2, 6
"""Fewest wrong elements of a line, and of all lines together after one per line is deducted."""

LEAST_RANK, GAP, LARGEST_ERROR = 6, 0.05, 1e150
LEAST_OTHERS = 0.25  # right values that are nearly of rank 1 have such errors by any bug

EXPLAINED, OFF = 0.75, 0.25
"""Share of wrong elements that one product must explain, and how far each may be off."""


def line_relations(evidence: Evidence) -> list[Finding]:
    """Return findings that each row or column is off by a different factor or offset.

    If there is no such finding for the rows, look for an error matrix of rank 1.
    """
    if len(evidence.shape) < 2 or evidence.fmt is None or evidence.count < 2 * FEW:
        return []
    found: list[Finding] = []
    for axis, name in ((-1, "row"), (-2, "column")):
        if min(evidence.rows, evidence.columns) < LEAST:
            continue
        points, wrong = evidence.lines(axis)
        number = wrong.sum(axis=1)
        usable = np.flatnonzero(number >= LEAST)
        inside = int(number[usable].sum())
        # One number per line is fitted: what is left over has to carry the conclusion.
        if usable.size < 2 or inside < 0.5 * wrong.sum() or inside - usable.size < FREEDOM:
            continue
        lines = _Lines(name, points, wrong, usable, evidence.eps)
        found += _factors(lines)
        found += _offsets(evidence, lines) if evidence.plain else []
        if axis == -1 and not found and len(evidence.shape) == 2:
            found += _rank_one(points, wrong)
    return found


class _Lines(Struct, frozen=True):
    """Some rows, or some columns, of an output."""

    name: str  # ``row`` or ``column``: the kind of line
    points: Points  # Arrays of shape (lines, elements of a line)
    wrong: BoolArray  # Mask of the elements that fail and are finite
    usable: Positions  # Indices of the lines with at least `LEAST` wrong elements
    eps: float  # of the output's format

    def fits(self, fit: Fit) -> list[float]:
        """Fit a number, such as a factor, to the wrong elements of each usable line.

        Return the fitted numbers in the order of the lines, leaving out lines that no number fits.
        The list is empty if a number fits less than a share of `MOST_LINES` of the usable lines, or
        if all numbers are nearly equal.
        """
        known: list[float] = []
        others = (1.0 - MOST_LINES) * len(self.usable) + 1e-9
        for i in self.usable:
            wrong = self.wrong[i]
            actual, expected = self.points.actual[i][wrong], self.points.expected[i][wrong]
            found = fit(actual, expected, LEAST, self.eps)
            if found is not None:
                known.append(found[0])
                continue
            others -= 1
            if others < 0:
                return []
        return known if _varied(known) else []


def _factors(lines: _Lines) -> Iterator[Finding]:
    known = lines.fits(fit_factor)
    if known:
        low, high = min(known), max(known)
        sentence = f"each {lines.name} is off by a factor of its own, {low:.3g} to {high:.3g}"
        yield Finding(f"{lines.name}-factor", sentence, {"low": low, "high": high}, 0.88)


def _offsets(evidence: Evidence, lines: _Lines) -> Iterator[Finding]:
    known = lines.fits(_fit_row_offset) if lines.wrong.sum(1).max() >= FEW else []
    if not known:
        return
    low, high = min(known), max(known)
    sentence = f"each {lines.name} is off by an offset of its own, {low:.3g} to {high:.3g}"
    source = ""
    if len(known) == lines.usable.size:
        first = lines.points.positions[lines.usable, 0]
        columns = evidence.columns
        index = first % columns if lines.name == "column" else first // columns
        source = _source(evidence, np.array(known), index)
    if source:
        sentence += f": {source}"
    numbers = {"low": low, "high": high, "source": source}
    yield Finding(f"{lines.name}-offset", sentence, numbers, LIKELIEST_OF_LINES if source else 0.86)


def _fit_row_offset(
    actual: Float64Array, expected: Float64Array, least: int, eps: float
) -> tuple[float, float] | None:
    # Numbers that are nearly equal have nearly equal errors, whatever the cause.
    if np.ptp(expected) <= 1e-3 * np.abs(expected).max(initial=0.0):
        return None
    return fit_offset(actual, expected, least, eps)


def _rank_one(points: Points, wrong: BoolArray) -> Iterator[Finding]:
    """Yield a finding if the error matrix has one large singular value, as of a term too many."""
    if min(wrong.shape) < LEAST_RANK or wrong.mean() < 0.5:
        return
    error = np.where(wrong, points.actual - points.expected, 0.0)
    size = float(np.abs(error).max())
    if not 0.0 < size < LARGEST_ERROR:
        return
    error /= size
    singular = np.linalg.svd(error, compute_uv=False)
    if singular[1] > GAP * singular[0]:
        return
    if not _explains(error, wrong) or _is_of_rank_one(points.expected, wrong):
        return  # where the right values have as few terms, the error of any bug has
    if not all(map(_differ, (np.abs(error).max(0), np.abs(error).max(1)))):
        return  # one error of all rows, or of all columns
    sentence = "the error is a number of each row times a number of each column (rank 1)"
    yield Finding("low-rank", sentence, {"rank": 1}, 0.75)


def _is_of_rank_one(expected: Float64Array, wrong: BoolArray) -> bool:
    """Tell whether the right values of the wrong elements have one large singular value."""
    right = np.where(wrong, expected, 0.0)
    largest = float(np.abs(right).max())
    if not 0.0 < largest < LARGEST_ERROR:
        return True
    singular = np.linalg.svd(right / largest, compute_uv=False)
    return bool(singular[1] <= LEAST_OTHERS * singular[0])


def _differ(sizes: Float64Array) -> bool:
    sizes = sizes[sizes > 0.0]
    return bool(np.ptp(sizes) > 1e-2 * sizes.max())


def _explains(error: Float64Array, wrong: BoolArray) -> bool:
    """Tell whether a matrix of rank 1 is close to the error in most wrong elements.

    The singular values alone do not show it: a few elements that are far larger than all others can
    determine the largest one.
    """
    left, singular, right = np.linalg.svd(error, full_matrices=False)
    rest = np.abs(error - (left[:, :1] * singular[:1]) @ right[:1])
    return bool(np.mean(rest[wrong] <= OFF * np.abs(error[wrong])) >= EXPLAINED)


def _varied(fitted: list[float]) -> bool:
    """Tell whether the numbers are not all the same."""
    return max(fitted) - min(fitted) > 1e-3 * max(abs(number) for number in fitted)


def _source(evidence: Evidence, offsets: Float64Array, index: Positions) -> str:
    """Return ``minus b`` or ``b once more`` if the op left out or doubled a 1-d input b."""
    for name, array in evidence.inputs.items():
        if array.ndim != 1 or dtype_name(array.dtype) is None or array.size <= int(index.max()):
            continue
        values = to_float64(array[index])
        for factor, words in ((-1.0, f"minus {name}"), (1.0, f"{name} once more")):
            if np.allclose(offsets, factor * values, rtol=1e-2, atol=1e-3 * np.abs(values).max()):
                return words
    return ""
