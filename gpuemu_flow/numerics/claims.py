"""Claims about which elements of an output are wrong, by an input's value or by index.

A claim is learned from all cases seen so far. It makes two predictions about the next case: no
element outside of the claim is wrong, and many elements inside of it are wrong. A claim with a
single threshold makes the second prediction only about the elements next to the threshold. Values
between the last right and the first wrong element are *free*: nothing is known about them yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from gpuemu_flow.numerics.elements import ELEMENT, ROW, SEVERELY, Feature, LabelledUnits
from gpuemu_flow.numerics.judge import BoolArray
from gpuemu_flow.numerics.ulp import Float64Array
from gpuemu_flow.quick_dataclass import dataclass

STRAY = 0.005
"""Share of the wrong elements that a claim may miss, since rounding makes some elements wrong."""

DENSE = 0.3
"""Share of the elements inside a claim that must be wrong; errors of the rest may be hidden."""

DENSE_ROWS = 0.8
"""`DENSE` for rows: a row with one wrong element is wrong, so that few errors are hidden."""

NEXT_TO = 48
"""Number of elements of a case next to a threshold that are examined."""

FEWEST_OUTSIDE, FEWEST_INSIDE = 24, 3
SHARE_OUTSIDE = 0.02
PLACE_COSTS = 0.1
"""Advantage of a claim by value over a claim by index, as a share of wrong elements."""

SECOND_END_COSTS = 0.08
"""Advantage of a claim with one end over a claim with two, as a share of wrong elements."""

TILES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
WIDE_COSTS = 0.1
VAGUE_COSTS, VAGUE_PLACE_COSTS = 0.05, 0.3
"""Cost of a claim by value, and of a claim by index, whose ends are not known exactly yet.

It is larger for indices, since more cases hardly narrow the ends down.
"""

CLOSE = 1.2
"""Largest ratio of the last right and the first wrong value that are given as one number."""

FADING = 1.3
"""Largest ratio of the borders of wrong and of severely wrong units if the error does not fade."""

NEAR_ZERO = 0.05
TINY = 2.0**-100
"""Magnitude up to which a right value is no evidence of a border farther from zero: errors in
proportion to such values are below every tolerance."""

LARGEST = 3e38

INDEX_SLACK = 0.02
"""Relative uncertainty of an index up to which the roundest possible number is named."""

STRETCHES = ("above", "below", "between")
MODULI = (128, 64, 32, 16, 8, 4, 3, 2)


@dataclass(frozen=True)
class Claim:
    """A claim that the wrong units (elements or rows) are those whose feature has certain values.

    Attributes
    ----------
    feature : Feature
    kind : str
        ``above``, ``below``, ``between``, ``equal``, ``odd``, ``even``, ``residue`` or ``tail``.
    low, high : tuple of float
        The lower and the upper end of the wrong values, each given as (last right value, first
        wrong value); empty if there is no such end. Values between these two may be right or wrong.
        Kinds without ends use only `low`. It holds the value for ``equal``, remainder and modulus
        for ``residue``, and the size of a tile for ``tail`` (an axis's last, incomplete tile).
    also : Claim or None
        A claim about another axis; an element is wrong only if both claims cover it.
    whole : bool
        True for integer features: no unknown value lies between neighbouring integers.
    """

    feature: Feature
    kind: str
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    also: Claim | None = None
    whole: bool = False

    @property
    def about(self) -> tuple[object, ...]:
        """Return the content of the claim, for comparison with claims learned from other cases."""
        exact = self.low if self.kind in ("equal", "residue", "tail") else ()
        return self.feature, self.kind, exact, self.also.about if self.also else None

    def inside(self, seen: LabelledUnits) -> tuple[BoolArray, BoolArray]:
        """Mark the units that the claim calls wrong, and the free units, on which it is silent."""
        values = seen.values[self.feature]
        with np.errstate(invalid="ignore"):
            inside, free = _inside(self, values, seen.sizes.get(self.feature, 0))
        if self.also is not None:
            other, unknown = self.also.inside(seen)
            inside, free = inside & other, (free & (other | unknown)) | (unknown & (inside | free))
        return inside, free

    def agrees(self, seen: LabelledUnits) -> bool | None:
        """Tell whether the claim predicts a case correctly; None if the case is no evidence."""
        if self.feature not in seen.values or self.feature.level not in seen.wrong:
            return None
        level = self.feature.level
        wrong, telling = seen.wrong[level], seen.right[level] & ~seen.dull[level]
        inside, free = self.inside(seen)
        number = int(np.count_nonzero(wrong))
        if np.count_nonzero(wrong & ~inside & ~free) > STRAY * number:
            return False
        near = inside & (wrong | telling)
        if self.kind in ("above", "below") and self.also is None:
            near = _nearest(self, seen.values[self.feature], near)
        count, bad = int(np.count_nonzero(near)), int(np.count_nonzero(wrong & near))
        if seen.passed:
            return False if count >= FEWEST_INSIDE else None
        # A failing case in which few elements are wrong is no evidence: others may be too small to
        # fail.
        return True if bad and bad >= _dense(self) * count else None


def _dense(claim: Claim) -> float:
    return DENSE_ROWS if claim.feature.level == ROW else DENSE


def _inside(claim: Claim, values: Float64Array, size: int) -> tuple[BoolArray, BoolArray]:
    none = np.zeros(values.shape, bool)
    if claim.kind == "equal":
        return values == claim.low[0], none
    if claim.kind in ("odd", "even"):
        return (values % 2 == 1) == (claim.kind == "odd"), none
    if claim.kind == "residue":
        return values % claim.low[1] == claim.low[0], none
    if claim.kind == "tail":
        return values >= size // claim.low[0] * claim.low[0], none
    # Claims say nothing about values that are not finite, except claims about infinity itself.
    known = ~np.isnan(values) if _of_infinite(claim) else np.isfinite(values)
    inside, free = known.copy(), ~known
    if claim.low:
        inside &= values >= claim.low[1]
        free |= known & (values > claim.low[0]) & (values < claim.low[1])
    if claim.high:
        inside &= values <= claim.high[1]
        free |= known & (values < claim.high[0]) & (values > claim.high[1])
    return inside, free & ~inside


def _of_infinite(claim: Claim) -> bool:
    return any(bool(np.isinf(ends[1])) for ends in (claim.low, claim.high) if ends)


def _nearest(claim: Claim, values: Float64Array, near: BoolArray) -> BoolArray:
    where = np.flatnonzero(near)
    if where.size <= NEXT_TO:
        return near
    order = np.argsort(values[where] * (1.0 if claim.low else -1.0), kind="stable")
    chosen = np.zeros_like(near)
    chosen[where[order[:NEXT_TO]]] = True
    return chosen


@dataclass(frozen=True)
class _Pool:
    """One feature's values: those of all wrong elements or rows, and those of all right ones."""

    wrong: Float64Array
    right: Float64Array


def claims(seen: Sequence[LabelledUnits]) -> list[Claim]:
    """List the claims that agree with the cases seen, likeliest first.

    Parameters
    ----------
    seen : sequence of LabelledUnits
        At least one of them is of a failing case.
    """
    failing = [each for each in seen if not each.passed]
    if not failing:
        return []
    common = set(failing[0].values).intersection(*(each.values for each in seen))
    features = sorted(common, key=_likely)
    found: list[Claim] = []
    for feature in features:
        pool = _Pool(
            np.concatenate([s.values[feature][s.wrong[feature.level]] for s in seen]),
            np.concatenate([s.values[feature][s.right[feature.level]] for s in seen]),
        )
        learned = _of_place if feature.of_place else _of_value
        found += learned(feature, pool, seen)
    found += _both([feature for feature in features if feature.kind == "axis"], seen)
    weighed = [(density(claim, seen), claim) for claim in found if _holds(claim, seen)]
    weighed.sort(key=lambda each: _cost(each[1]) - each[0])
    ordered = [claim for dense, claim in weighed if dense >= _dense(claim)]
    return list(_with_axes(ordered, features, seen))


def _with_axes(
    ordered: Sequence[Claim], features: Sequence[Feature], seen: Sequence[LabelledUnits]
) -> Iterator[Claim]:
    """Yield the claims of `ordered`, with claims about single axes inserted.

    A flat claim says that all elements from some flat index on are wrong. An axis claim says that
    every index of one axis except the first is wrong. Axis claims are weak evidence, because most
    wrong orders of elements leave the first index in place. They are therefore inserted only before
    the first flat claim, and only if they have at least the `density` of that flat claim.
    """
    first = next((c for c in ordered if c.feature.kind == "flat" and c.kind == "above"), None)
    for claim in ordered:
        if claim is first:
            for feature in features:
                by_axis = Claim(feature, "above", low=(0.0, 1.0))
                if feature.kind != "axis" or not _holds(by_axis, seen):
                    continue
                if density(by_axis, seen) >= density(claim, seen):
                    yield by_axis
        yield claim


def _cost(claim: Claim) -> float:
    place = claim.feature.of_place
    vague = 0.0 if is_sharp(claim) else VAGUE_PLACE_COSTS if place else VAGUE_COSTS
    # A claim by magnitude is the weaker one: it holds wherever a claim by value does.
    wide = WIDE_COSTS * (claim.feature.kind == "magnitude")
    return PLACE_COSTS * place + SECOND_END_COSTS * (claim.kind == "between") + vague + wide


def is_sharp(claim: Claim) -> bool:
    """Tell whether the claim's borders are known well enough to give each as one number."""
    if claim.kind not in STRETCHES:
        return True
    sharp = is_adjacent if claim.feature.of_place else is_close
    return all(is_known(claim, ends) or sharp(*ends) for ends in (claim.low, claim.high) if ends)


def is_known(claim: Claim, ends: tuple[float, ...]) -> bool:
    """Tell whether a border lies between two integers that are next to each other.

    `ends` is the last right and the first wrong value.
    """
    return claim.whole and abs(ends[0] - ends[1]) <= 1.0


def is_firm(claim: Claim, seen: Sequence[LabelledUnits]) -> bool:
    """Tell whether the claim's borders stay in place if only severe errors are counted.

    A border moves if the error shrinks gradually towards it, since the tolerance alone then decides
    where wrong values end. Claims by index, and claims without borders, are always firm. Any other
    claim is firm only if there are severe errors.
    """
    if claim.kind not in STRETCHES or claim.feature.of_place:
        return True
    least, number = 1, 0
    for degree in range(len(SEVERELY)):
        values = _severely_wrong(claim, seen, degree)
        if values.size < least:
            # Too few severe errors are no evidence; a claim is not firm if there are none at all.
            return number > 0
        number = values.size
        least = number // 2
        few = int(STRAY * number / 2)
        first, last = float(values[few]), float(values[-1 - few])
        ends = ((claim.low, first, 1.0), (claim.high, last, -1.0))
        if not all(_is_there(own[1], value, side) for own, value, side in ends if own):
            return False
    return True


def _severely_wrong(claim: Claim, seen: Sequence[LabelledUnits], degree: int) -> Float64Array:
    """Return the values of the claim's feature for severely wrong elements or rows, sorted.

    `degree` selects the factor in `SEVERELY` that defines a severe error.
    """
    level = claim.feature.level
    found = [
        each.values[claim.feature][each.severe[level][degree]]
        for each in seen
        if claim.feature in each.values
    ]
    values = np.concatenate(found) if found else np.zeros(0)
    ordered: Float64Array = np.sort(values[~np.isnan(values)])
    return ordered


def _is_there(border: float, severe: float, side: float) -> bool:
    """Tell whether severe errors begin near the place where errors begin.

    A claim gives the range of a feature's values that wrong elements or rows have. At one end of
    this range, `border` is the outermost value of a wrong element or row, and `severe` that of a
    severely wrong one. `side` is 1.0 for the lower end, and -1.0 for the upper end.
    """
    if (severe - border) * side <= 0.0 or is_close(border, severe):
        return True
    if border * severe <= 0.0 or math.isinf(border) or math.isinf(severe):
        return False
    ratio = abs(border / severe)
    return max(ratio, 1.0 / ratio) <= FADING or max(abs(border), abs(severe)) <= NEAR_ZERO


def has_moved(before: Claim, after: Claim) -> bool:
    """Tell whether a border of a claim moved when more cases were seen: from `before` to `after`.

    Borders count only if they seemed well known in `before`, since all others are expected to move.
    """
    if before.kind not in STRETCHES or not is_sharp(before):
        return False
    pairs = [(old, new) for old, new in ((before.low, after.low), (before.high, after.high)) if old]
    for old, new in pairs:
        if before.feature.of_place:
            moved = not is_adjacent(old[1], new[1])
        else:
            moved = not is_close(old[1], new[1]) and not is_close(old[0], new[1])
            moved = moved or (is_known(before, old) and old[1] != new[1])
        if moved:
            return True
    return False


def reaches(claim: Claim, shape: tuple[int, ...]) -> bool:
    """Tell whether an output of a given shape has elements at the indices of a claim."""
    feature = claim.feature
    if not feature.of_place:
        return True
    if feature.kind == "axis":
        axis = int(feature.subject)
        size = shape[axis] if axis < len(shape) else 0
    else:
        size = math.prod(shape)
    least = claim.low[1] if claim.low and claim.kind in STRETCHES else 0.0
    return size > least and (claim.also is None or reaches(claim.also, shape))


def is_adjacent(right: float, wrong: float) -> bool:
    """Tell whether two indices are next to each other, or nearly so."""
    return abs(right - wrong) <= max(1.0, INDEX_SLACK * wrong)


def is_close(right: float, wrong: float) -> bool:
    """Tell whether two neighbouring values, of a right and a wrong element, are nearly the same."""
    if math.isinf(right) or math.isinf(wrong):
        return abs(right if math.isinf(wrong) else wrong) > LARGEST
    if right * wrong <= 0.0:
        return max(abs(right), abs(wrong)) <= NEAR_ZERO
    if is_zero(right, wrong):
        return True
    ratio = abs(right / wrong)
    return max(ratio, 1.0 / ratio) <= CLOSE


def is_zero(right: float, wrong: float) -> bool:
    """Tell whether 0 is a plausible border between right and wrong values.

    Parameters
    ----------
    right, wrong : float
        The right and the wrong value that are nearest to each other.
    """
    if wrong == 0.0 or right * wrong <= 0.0:
        return max(abs(right), abs(wrong)) <= NEAR_ZERO
    return abs(right) <= abs(wrong) <= TINY


def density(claim: Claim, seen: Sequence[LabelledUnits]) -> float:
    """Return the share of wrong units among the units (elements or rows) that the claim covers."""
    wrong = count = 0
    for each in seen:
        if not each.passed and not each.chosen:
            inside, _ = claim.inside(each)
            bad = int(np.count_nonzero(each.wrong[claim.feature.level] & inside))
            wrong += bad
            telling = each.right[claim.feature.level] & ~each.dull[claim.feature.level]
            count += bad + int(np.count_nonzero(telling & inside))
    return wrong / count if count else 0.0


_KINDS = ("value", "top", "low", "magnitude", "axis", "flat")


def _likely(feature: Feature) -> tuple[bool, int, str]:
    return feature.level == ROW, _KINDS.index(feature.kind), feature.subject


def _holds(claim: Claim, seen: Sequence[LabelledUnits]) -> bool:
    """Tell whether most cases agree with a claim, and enough right units lie outside of it."""
    told = [claim.agrees(each) for each in seen]
    if any(
        fits is False and each.chosen and each.passed for fits, each in zip(told, seen, strict=True)
    ):
        return False  # a case that was chosen to fail has passed
    showing = sum(_shows(claim, each) for each in seen)
    if 2 * told.count(True) < showing or told.count(False) > max(1, len(told) // 8):
        return False
    outside = number = 0
    for each in seen:
        if each.passed:
            continue
        inside, free = claim.inside(each)
        level = claim.feature.level
        right = each.right[level] & ~each.dull[level]
        outside += int(np.count_nonzero(right & ~inside & ~free))
        number += right.size
    fewest = FEWEST_OUTSIDE // 3 if claim.feature.level == ROW else FEWEST_OUTSIDE
    return outside >= max(fewest, SHARE_OUTSIDE * number)


def _shows(claim: Claim, seen: LabelledUnits) -> bool:
    """Tell whether a claim says anything about any wrong unit (element or row) of a case."""
    _, free = claim.inside(seen)
    return bool((seen.wrong[claim.feature.level] & ~free).any())


def _of_value(feature: Feature, pool: _Pool, seen: Sequence[LabelledUnits]) -> Iterator[Claim]:
    wrong, right = pool.wrong[~np.isnan(pool.wrong)], pool.right[~np.isnan(pool.right)]
    if wrong.size < 1 or right.size < 1 or np.count_nonzero(np.isnan(pool.wrong)):
        return
    low, high = float(wrong.min()), float(wrong.max())
    whole = feature.subject in seen[0].integers
    if feature.level == ELEMENT and feature.kind == "value":
        if low == high:
            yield Claim(feature, "equal", (low,))
        if whole and low != high:
            for kind, rest in (("odd", 1), ("even", 0)):
                if np.count_nonzero(wrong % 2 != rest) <= STRAY * wrong.size:
                    yield Claim(feature, kind)
    yield from _stretches(feature, right, low, high, whole=whole)
    few = int(STRAY * wrong.size / 2)
    if few:
        ordered = np.sort(wrong)
        nearly_low, nearly_high = float(ordered[few]), float(ordered[-1 - few])
        if nearly_low == nearly_high and low != high and feature.kind == "value":
            yield Claim(feature, "equal", (nearly_low,))
        yield from _stretches(feature, right, nearly_low, nearly_high, whole=whole)


def _stretches(
    feature: Feature, right: Float64Array, low: float, high: float, *, whole: bool = False
) -> Iterator[Claim]:
    finite = right if np.isinf([low, high]).any() else right[np.isfinite(right)]
    below, beyond = finite[finite < low], finite[finite > high]
    lower = (float(below.max()), low) if below.size else ()
    upper = (float(beyond.min()), high) if beyond.size else ()
    if lower:
        yield Claim(feature, "above", low=lower, whole=whole)
    if upper:
        yield Claim(feature, "below", high=upper, whole=whole)
    if lower and upper and low != high:
        yield Claim(feature, "between", lower, upper, whole=whole)


def _of_place(feature: Feature, pool: _Pool, seen: Sequence[LabelledUnits]) -> Iterator[Claim]:
    wrong, right = pool.wrong, pool.right
    if not wrong.size or not right.size:
        return
    low, high = float(wrong.min()), float(wrong.max())
    if low == high:
        yield Claim(feature, "equal", (low,))
    for modulus in MODULI if low != high else ():
        rest = float(np.median(wrong % modulus))
        if np.count_nonzero(wrong % modulus != rest) <= STRAY * wrong.size:
            yield Claim(feature, "residue", (rest, float(modulus)))
            break
    if low != high:
        # Most wrong orders of elements keep the first one, so "all but the first" is no claim.
        found = _stretches(feature, right, low, high)
        yield from (claim for claim in found if claim.kind == "below" or low > 1.0)
    for tile in TILES:
        claim = Claim(feature, "tail", (float(tile),))
        if all(claim.agrees(each) is not False for each in seen):
            yield claim
            break


def _both(axes: Sequence[Feature], seen: Sequence[LabelledUnits]) -> Iterator[Claim]:
    """Yield claims about corners: on each of two axes, the index is at or beyond a border."""
    for place, first in enumerate(axes):
        for second in axes[place + 1 :]:
            ends = [_corner(each, seen) for each in (first, second)]
            if all(low > 0 for low in ends):
                one, two = (
                    Claim(feature, "above", low=(low - 1.0, low))
                    for feature, low in zip((first, second), ends, strict=True)
                )
                yield Claim(first, "above", one.low, also=two)


def _corner(feature: Feature, seen: Sequence[LabelledUnits]) -> float:
    wrong = np.concatenate([s.values[feature][s.wrong[ELEMENT]] for s in seen])
    return float(wrong.min()) if wrong.size else 0.0
