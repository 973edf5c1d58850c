"""Test claims about wrong elements on new cases and on inputs filled with chosen values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.cases.cause import Cause, Counts, RelationName
from gpuemu_flow.fuzz.relation_search import RelationSearch, Tried
from gpuemu_flow.numerics.claim_words import formula_of, sentence_of
from gpuemu_flow.numerics.claims import Claim, claims, has_moved, is_firm, is_sharp, reaches
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, to_float64
from gpuemu_flow.numerics.elements import ELEMENT, ROW, Feature, LabelledUnits, label_units
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import DTYPES, Case

Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[Case, "Arrays | None"], "Tried | None"]

FAILING, PASSING = 5, 2
"""Maximum numbers of known failing cases and of known passing cases that are run again."""

ENOUGH, MOST_MISSED = 6, 1
"""Number of new failing cases that a claim has to predict, and of new cases that may contradict
it."""

MOST_TRIED = 24
SWEEPS = 5
"""Number of cases with values near a claim's border."""

PATIENCE = 20
"""Number of new cases among which a sufficiently large case is looked for."""

MOST_WRONG_OUTSIDE = 0.1
"""Maximum share of rows that may still be wrong after a change by which a claim no longer covers
them."""

MOST_MOVED = 4
"""Maximum number of failing cases whose rows are changed so that a claim does not cover them."""

SCALED = 0.1
"""Ratio of the relative error outside of a claim to the relative error inside, above which the
claim's border comes only from the tolerance."""

_ROUND = (-3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 8.0)

MOST_CLAIMS = 3
WIDE = 1024
"""Number of elements that a case needs to try values of all magnitudes."""

MOST_SIGHTINGS = 40
MOST_ELEMENTS = 1 << 16


@dataclass
class ClaimSearch:
    """Looks for a claim that explains which elements of an op's output are wrong.

    Attributes
    ----------
    relations : RelationSearch
        Provides the names of axes and the shapes of outputs.
    run : callable
        Judges a case, on the inputs that it describes or on given inputs; returns None if the
        budget is spent.
    """

    relations: RelationSearch
    run: Run
    _seen: list[LabelledUnits] = field(default_factory=list)
    _known: list[Tried] = field(default_factory=list)
    _failed: list[Tried] = field(default_factory=list)

    def observe(self, tried: Tried, *, chosen: bool = False) -> LabelledUnits | None:
        """Learn which elements of a case are wrong; return them.

        Returns None if the case teaches nothing: it failed in another way, for example, or its
        output is too large.

        Parameters
        ----------
        tried : Tried
            The case after its run.
        chosen : bool
            True if values of an input were chosen for a test.
        """
        if tried.failed is None or not tried.actual or len(self._seen) >= MOST_SIGHTINGS:
            return None
        if any(array.size > MOST_ELEMENTS for array in tried.actual.values()):
            return None
        observed = self.relations.observation(tried)
        if observed is None:
            return None
        integers = frozenset(n for n, a in tried.inputs.items() if a.dtype.kind in "iu")
        seen = label_units(observed, integers, chosen=chosen)
        if seen is not None:
            self._seen.append(seen)
            self._known.append(tried)
            if tried.failed:
                self._failed.append(tried)
        return seen

    def cause(
        self, failing: Sequence[Case], passing: Sequence[Case], new: Iterator[Case]
    ) -> Cause | None:
        """Return the first claim that new cases confirm, as a `Cause`; None if none is confirmed.

        Parameters
        ----------
        failing, passing : sequence of Case
            Cases that are already known to fail or to pass.
        new : iterator of Case
            Further cases like the failing ones, to confirm a claim.
        """
        for case in (*_diverse(failing, FAILING), *_diverse(passing, PASSING)):
            tried = self.run(case, None)
            if tried is None:
                return None
            self.observe(tried)
        self._tell_apart()
        dropped: set[object] = set()
        for _ in range(MOST_CLAIMS):
            found = [claim for claim in claims(self._seen) if claim.about not in dropped]
            if not found:
                return None
            cause = self._confirmed(found[0], new)
            if cause is not None:
                return cause
            dropped.add(found[0].about)
        return None

    def _tell_apart(self) -> None:
        """Run cases with input values around the borders of rival claims, to refute wrong ones."""
        rivals = [claim for claim in claims(self._seen) if not claim.feature.of_place]
        for claim in {each.feature: each for each in reversed(rivals[:MOST_CLAIMS])}.values():
            self._sweep(claim)

    def _confirmed(self, found: Claim, new: Iterator[Case]) -> Cause | None:
        claim = self._sharpened(found)
        if claim is None:
            return None
        counts, missed = Counts(), 0
        for case in self._telling(claim, new):
            tried = self.run(case, None)
            if tried is None:
                break
            seen = self.observe(tried)
            told = None if seen is None else claim.agrees(seen)
            if told is None:
                continue
            counts = _counted(counts, failed=bool(tried.failed), told=told)
            missed += not told
            learned = self._relearned(claim)
            if missed > MOST_MISSED or learned is None or has_moved(claim, learned):
                return None
            claim = learned
            if counts.inside_failed >= ENOUGH:
                break
        if counts.inside_failed < ENOUGH or not is_sharp(claim):
            return None
        if not is_firm(claim, self._seen) or self._refuted(claim):
            return None
        kind = "element-place" if claim.feature.of_place else "element-value"
        subject = "" if claim.feature.kind == "flat" else claim.feature.subject
        named = RelationName(kind, subject, formula_of(claim))
        return Cause(True, sentence_of(claim), relation=named, counts=counts)

    def _refuted(self, claim: Claim) -> bool:
        """Tell whether a test refutes a claim by finding wrong elements outside of the claim.

        The op runs on inputs that are made for the test. For a claim about rows, rows of several
        failing cases are changed as little as possible, so that the claim no longer covers them.
        For a claim about one value of an input, see `_is_not_the_only_value`. For a claim about
        large inputs, see `_scales_the_error`. Claims about positions are not tested.
        """
        feature = claim.feature
        if feature.of_place or not self._failed:
            return False
        if claim.kind == "equal":
            return self._is_not_the_only_value(claim)
        if feature.level == ELEMENT and feature.kind == "magnitude" and claim.kind == "above":
            # Elements of 0 hide every error, and small ones may.
            return claim.low[0] == 0.0 or self._scales_the_error(claim)
        if feature.level != ROW or len(claim.high or claim.low) != 2:
            return False
        return any(self._fails_moved_out(claim, tried) for tried in self._telling_cases(feature))

    def _telling_cases(self, feature: Feature) -> list[Tried]:
        """List a few failing cases with different seeds, the most suitable for a test first.

        Cases with plain values come first. Among equally plain cases, larger inputs come first.
        """
        name = feature.subject
        ordered = sorted(
            (tried for tried in self._failed if tried.inputs[name].size),
            key=lambda t: (_is_plain(t), min(t.inputs[name].size, WIDE)),
            reverse=True,
        )
        chosen: dict[int, Tried] = {}
        for tried in ordered:
            chosen.setdefault(tried.case.seed, tried)
        return list(chosen.values())[:MOST_MOVED]

    def _fails_moved_out(self, claim: Claim, tried: Tried) -> bool:
        name = claim.feature.subject
        values = np.array(tried.inputs[name])
        if dtype_name(values.dtype) not in FLOAT_LIMITS:
            return False
        rows = to_float64(values.reshape(-1, values.shape[-1]))
        moved = _moved_out(rows, claim)
        moved[1::2] = rows[1::2]
        changed = moved.reshape(values.shape).astype(values.dtype)
        again = self.run(tried.case, {**tried.inputs, name: changed})
        seen = None if again is None else self.observe(again, chosen=True)
        if seen is None or ROW not in seen.wrong or seen.wrong[ROW].size != len(rows):
            return False
        wrong = seen.wrong[ROW][::2]
        return int(np.count_nonzero(wrong)) > MOST_WRONG_OUTSIDE * wrong.size

    def _scales_the_error(self, claim: Claim) -> bool:
        """Tell whether a claim that large elements get wrong results only reflects the tolerance.

        The claim is that elements above a border get wrong results. If each error is a fixed share
        of its input element, errors exceed the tolerance from some size on. This size becomes the
        border, although the op does nothing special there. To test this, the op runs again, with
        half of the elements set to half of the border. The result is True if errors below the
        border are not much smaller, relative to their elements, than errors above it.
        """
        name, border = claim.feature.subject, 0.5 * claim.low[1]
        tried = self._telling_cases(claim.feature)
        if not tried or dtype_name(tried[0].inputs[name].dtype) not in FLOAT_LIMITS:
            return False
        values = to_float64(tried[0].inputs[name]).reshape(-1)
        signs = np.where(np.signbit(values), -1.0, 1.0)
        small = np.where(np.arange(values.size) % 2 == 0, signs * border, values)
        given = tried[0].inputs[name]
        changed = np.array(given)
        changed[...] = small.reshape(given.shape).astype(given.dtype)
        again = self.run(tried[0].case, {**tried[0].inputs, name: changed})
        seen = None if again is None else self.observe(again, chosen=True)
        if again is None or seen is None or claim.feature not in seen.values:
            return False
        inside, free = claim.inside(seen)
        sizes = seen.values[claim.feature]
        ((out, actual),) = again.actual.items()
        error = np.abs(to_float64(actual) - to_float64(again.expected[out])).reshape(-1)
        with np.errstate(all="ignore"):
            share = error / sizes
        within, outside = (
            share[mask & np.isfinite(share) & (sizes > 0)] for mask in (inside, ~inside & ~free)
        )
        if not within.size or not outside.size:
            return False
        return bool(np.median(outside) > SCALED * np.median(within))

    def _is_not_the_only_value(self, claim: Claim) -> bool:
        """Tell whether a test refutes a claim that only one value of an input gives wrong results.

        The op runs again, with every second element of the input set to another round number, such
        as 1.5 or -2. The claim is refuted if elements without the claimed value give wrong results.
        """
        name = claim.feature.subject
        tried = self._telling_cases(claim.feature)
        if claim.feature.kind != "value" or not tried:
            return False
        values = np.array(tried[0].inputs[name])
        others = np.array([v for v in _ROUND if v != claim.low[0]])
        if values.dtype.kind in "iu":
            others = others[others == np.rint(others)]
            others = others[others >= np.iinfo(values.dtype).min]
        elif dtype_name(values.dtype) not in FLOAT_LIMITS:
            return False
        flat = to_float64(values).reshape(-1)
        others = _allowed(others, tried[0].case, name, flat)
        kept = np.arange(flat.size) % 2 == 1
        if not flat.size or not others.size:
            return False
        chosen = np.resize(others, flat.size)
        changed = np.where(kept, flat, chosen).reshape(values.shape).astype(values.dtype)
        again = self.run(tried[0].case, {**tried[0].inputs, name: changed})
        seen = None if again is None else self.observe(again, chosen=True)
        if seen is None or claim.feature not in seen.values:
            return False
        inside, free = claim.inside(seen)
        return bool((seen.wrong[claim.feature.level] & ~inside & ~free).any())

    def _sharpened(self, claim: Claim) -> Claim | None:
        """Return a claim with a more exact border, found by trying values near the border.

        Returns None if these values refute the claim.
        """
        for _ in range(0 if claim.feature.of_place else SWEEPS):
            if is_sharp(claim):
                break
            tried = self._sweep(claim)
            if tried is None or tried.failed is None:
                break
            learned = self._relearned(claim)
            if learned is None:
                return None
            claim = learned
        return claim

    def _telling(self, claim: Claim, new: Iterator[Case]) -> Iterator[Case]:
        """Yield new cases on which to test a claim.

        Three in four are large enough: the output has elements at the indices of the claim. If the
        shape of the output is unknown, the case has to be at least as large as the smallest failing
        case.
        """
        least = min((tried.case.numel for tried in self._failed), default=0)
        for number in range(MOST_TRIED):
            for case in itertools.islice(new, PATIENCE):
                shape = self.relations.output_shape(case)
                fits = case.numel >= least if shape is None else reaches(claim, shape)
                if number % 4 == 0 or fits:
                    yield case
                    break

    def _relearned(self, claim: Claim) -> Claim | None:
        """Return a claim of the same kind that fits all cases so far; None if there is none."""
        return next((each for each in claims(self._seen) if each.about == claim.about), None)

    def _sweep(self, claim: Claim) -> Tried | None:
        """Fill a claim's input with values around the claim's border, and run a known case on it.

        The border lies between the values that give right results and those that give wrong ones.
        Returns None if the claim has no border, or if its border does not suit the input's dtype.
        Also returns None if no case has failed yet, or the budget is spent.
        """
        name, ends = claim.feature.subject, claim.low or claim.high
        if len(ends) != 2 or not self._failed:
            return None
        tried = max(self._known, key=lambda t: (min(t.inputs[name].size, WIDE), _is_plain(t)))
        array = tried.inputs[name]
        limits = FLOAT_LIMITS.get(dtype_name(array.dtype) or "")
        if limits is None and not claim.whole:
            return None
        largest = limits.max if limits is not None else float(np.iinfo(array.dtype).max)
        chosen = _between(ends, array.size if claim.feature.level == ELEMENT else 64, largest)
        chosen = np.rint(chosen) if claim.whole else chosen
        rng = SeededRng(tried.case.seed).derive(f"sweep_{len(self._seen)}")
        order = np.asarray(rng.ranges(array.size, 0, chosen.size))
        values = np.array(array)
        flat = chosen[order].reshape(array.shape)
        if claim.feature.kind == "magnitude":
            signs = np.where(np.signbit(to_float64(values)), -1.0, 1.0)
            flat = flat * signs
        if claim.feature.level != ELEMENT:
            flat = _rows(to_float64(values), flat, claim.feature.kind)
        values[...] = flat.astype(values.dtype)
        again = self.run(tried.case, {**tried.inputs, name: values})
        if again is not None:
            self.observe(again, chosen=True)
        return again


def _moved_out(rows: NDArray[np.float64], claim: Claim) -> NDArray[np.float64]:
    """Change rows as little as possible, so that a claim about rows no longer covers them."""
    moved: NDArray[np.float64] = rows.copy()
    kind = claim.feature.kind
    if claim.high:
        beyond = claim.high[0] + 0.5 * abs(claim.high[0])
        if kind == "low":
            moved[:] = np.maximum(moved, beyond)
        else:
            moved[:, 0] = beyond
        return moved
    before = claim.low[0] - 0.5 * abs(claim.low[0])
    if kind == "low":
        moved[:, 0] = before
    elif kind == "top":
        moved[:] = np.minimum(moved, before)
    else:
        moved[:] = np.clip(moved, -abs(before), abs(before))
    return moved


def _allowed(
    values: NDArray[np.float64], case: Case, name: str, known: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return those of the candidate `values` that lie within the bounds of the input called `name`.

    The bounds are the ones that the case declares for the input. `known` holds values that the
    input has. If the input is not of floats or has a rule, the smallest and the largest finite
    value in `known` stand in for bounds that are not declared. Other inputs have no bounds but the
    declared ones.
    """
    spec = next(spec for spec in case.inputs if spec.name == name)
    low, high = -np.inf, np.inf
    if spec.rule is not None or DTYPES[spec.dtype].kind != "float":
        finite = known[np.isfinite(known)]
        low, high = (finite.min(), finite.max()) if finite.size else (np.inf, -np.inf)
    low = low if spec.low is None else spec.low
    high = high if spec.high is None else spec.high
    return np.asarray(values[(values >= low) & (values <= high)], np.float64)


def _is_plain(tried: Tried) -> bool:
    return RelationSearch.is_plain(tried.case)


def _counted(counts: Counts, *, failed: bool, told: bool) -> Counts:
    if not failed:
        return replace(counts, outside=counts.outside + 1)
    foretold = counts.inside_failed + told
    return replace(counts, inside_failed=foretold, inside=counts.inside + 1)


def _between(ends: tuple[float, ...], count: int, largest: float) -> NDArray[np.float64]:
    """Return values over an interval, in ascending order.

    The spacing is geometric if the ends have the same sign and differ by more than a factor of 2;
    otherwise it is even. Ends are first clipped to the range from -`largest` to `largest`. There
    are `count` values, but at least 2 and at most 4096.
    """
    low, high = np.clip(sorted(ends), -largest, largest)
    count = min(max(count, 2), 4096)
    if low * high > 0 and max(low / high, high / low) > 2.0:
        spaced = np.geomspace(abs(low), abs(high), count)
        return spaced if low > 0 else -spaced
    evenly: NDArray[np.float64] = np.linspace(low, high, count)
    return evenly


def _rows(
    values: NDArray[np.float64], chosen: NDArray[np.float64], kind: str
) -> NDArray[np.float64]:
    """Return a copy of `values`, in which the first element of each row is a given extreme value.

    The given value for a row is the first element of the same row in `chosen`. The other elements
    are clipped, so that the given value is the largest of the row if `kind` is ``top``, the
    smallest if `kind` is ``low``, and the largest in magnitude otherwise.
    """
    target = chosen[..., :1]
    if kind == "top":
        limited = np.minimum(values, target)
    elif kind == "low":
        limited = np.maximum(values, target)
    else:
        limited = np.clip(values, -np.abs(target), np.abs(target))
    limited[..., :1] = target
    return limited


def _diverse(cases: Sequence[Case], most: int) -> list[Case]:
    """Select at most `most` cases, of as many different strategies as possible.

    Of one strategy, the smallest case of at least 256 elements comes first. Empty and very large
    cases are left out.
    """
    by_strategy: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        if 0 < case.numel <= MOST_ELEMENTS:
            by_strategy.setdefault(tuple(s.strategy for s in case.inputs), []).append(case)
    for members in by_strategy.values():
        members.sort(key=lambda case: (case.numel < 256, case.numel))
    chosen: list[Case] = []
    while len(chosen) < most and any(by_strategy.values()):
        chosen += [members.pop(0) for members in by_strategy.values() if members]
    return chosen[:most]
