"""Features that failing cases share and passing cases lack, and failures grouped by features.

The search finds the simplest condition that holds for every failing case and for nearly no passing
case. It tries pairs of conditions only if no single condition does so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gpuemu_flow.cases.conditions import PREFERENCE, Condition, conditions_of, sizes_of
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Case, FailureKind

NEARLY_NONE = 0.1
"""Largest share of the passing cases that may have the feature, too."""

TELLING = 0.2
"""A feature that more passing cases have is still reported if at least this share of the passing
cases lacks it: a bug that shows only occasionally never shows without its feature."""

FEWEST_RULED_OUT = 5

FEWEST_IN_PART = 3
"""Fewest cases in a part of the failing cases: any two cases share some condition by chance."""

PRECISE, WORTH_A_SECOND = 0.8, 0.25
"""Pairs are tried if a share below `PRECISE` of the cases with the best single condition fails. A
pair is reported instead of this condition if it has at most the share `WORTH_A_SECOND` of its
exceptions."""

SLACK = 0.02
"""Additional exceptions that a likelier condition may have, as a share of the compared cases."""

MOST_PAIRED = 24
"""Number of conditions with the fewest exceptions that are paired with all others."""

MOST_PASSING = 2000
"""Largest number of passing cases that are compared."""


@dataclass(frozen=True)
class TriggeringFeature:
    """A feature that distinguishes failing cases from passing ones.

    Attributes
    ----------
    conditions : tuple of Condition
        One condition, or two conditions that must hold together.
    failing : int
        Number of failing cases, all of which have the feature.
    passing : int
        Number of passing cases that were compared with the failing ones.
    exceptions : int
        Number of passing cases that have the feature nevertheless.
    """

    conditions: tuple[Condition, ...]
    failing: int
    passing: int
    exceptions: int

    @property
    def sentence(self) -> str:
        """Return the feature in words, such as ``layout strided of x (7 of 7 such cases fail)``."""
        what = " and ".join(condition.sentence for condition in self.conditions)
        such = self.failing + self.exceptions
        others = self.passing - self.exceptions
        none = f", none of the {others} others" if self.exceptions and others else ""
        return f"{what} ({self.failing} of {such} such cases fail{none})"


@dataclass(frozen=True)
class FailureGroup:
    """Failing cases that share a failure kind and, if one was found, a triggering feature."""

    kind: FailureKind
    feature: TriggeringFeature | None
    members: tuple[Case, ...]


def group(
    failures: Iterable[tuple[Case, FailureKind]], passing: Sequence[Case] = ()
) -> list[FailureGroup]:
    """Group failures by kind, then by triggering feature.

    Parameters
    ----------
    failures : iterable of (Case, FailureKind)
        Failing cases of one op, each with its first failure's kind.
    passing : sequence of Case
        The op's cases that passed.

    Returns
    -------
    list of FailureGroup
        The group with the smallest failing case comes first; the cases of each group are sorted by
        size. A kind whose cases have no feature in common is divided, repeatedly if needed, by the
        condition that explains most of its cases. Unexplained cases form one group without a
        feature.
    """
    by_kind: dict[FailureKind, list[Case]] = {}
    for case, kind in failures:
        by_kind.setdefault(kind, []).append(case)
    passing = _some(passing)
    maxima = _maxima((*passing, *(case for cases in by_kind.values() for case in cases)))
    background = _facts(passing, maxima)
    groups = []
    for kind, cases in by_kind.items():
        facts = _facts(cases, maxima)
        for feature, members in _parted(facts, background):
            chosen = sorted((cases[i] for i in members), key=_by_size)
            groups.append(FailureGroup(kind, feature, tuple(chosen)))
    return sorted(groups, key=lambda group: _by_size(group.members[0]))


def _by_size(case: Case) -> tuple[int, int]:
    return case.numel, case.index


def _some(cases: Sequence[Case]) -> Sequence[Case]:
    """Return at most `MOST_PASSING` of the cases, spread evenly over the sequence."""
    if len(cases) <= MOST_PASSING:
        return cases
    return [cases[i * len(cases) // MOST_PASSING] for i in range(MOST_PASSING)]


def _maxima(cases: Iterable[Case]) -> dict[str, int]:
    maxima: dict[str, int] = {}
    for case in cases:
        for name, size in sizes_of(case).items():
            maxima[name] = max(size, maxima.get(name, 0))
    return maxima


Facts = Sequence[frozenset[Condition]]
Conditions = tuple[Condition, ...]


def _facts(cases: Iterable[Case], maxima: dict[str, int]) -> list[frozenset[Condition]]:
    return [frozenset(conditions_of(case, maxima)) for case in cases]


def _trigger(failing: Facts, passing: Facts) -> TriggeringFeature | None:
    if not failing or not passing:
        return None
    common = frozenset.intersection(*failing)
    holders: dict[Condition, set[int]] = {condition: set() for condition in common}
    for index, facts in enumerate(passing):
        for condition in facts & common:
            holders[condition].add(index)
    allowed = NEARLY_NONE * len(passing)
    options: dict[Conditions, int] = {(c,): len(having) for c, having in holders.items()}
    slack = int(SLACK * min(len(passing), 4 * len(failing)))
    best = _preferred(options, slack)
    if best is None:
        return None
    if options[best] > min(allowed, len(failing) * (1.0 / PRECISE - 1.0)):
        pairs = _pairs(holders)
        pair = _preferred(pairs, slack)
        if pair is not None and pairs[pair] <= WORTH_A_SECOND * options[best]:
            options, best = pairs, pair
    if options[best] > allowed:
        # No condition separates the cases well, but one that all failures have may still be
        # reported.
        options = {(c,): len(having) for c, having in holders.items()}
        best = _preferred(options, slack) or best
        ruled_out = len(passing) - options[best]
        if ruled_out < max(FEWEST_RULED_OUT, TELLING * len(passing)):
            return None
    return TriggeringFeature(best, len(failing), len(passing), options[best])


def _pairs(holders: dict[Condition, set[int]]) -> dict[Conditions, int]:
    """Count, for each useful pair of conditions, the passing cases that meet both.

    A pair is useful if fewer passing cases meet both conditions than meet either one alone.
    """
    ranked = sorted(holders, key=lambda c: (len(holders[c]), _rank((c,))))
    pairs: dict[Conditions, int] = {}
    for place, first in enumerate(ranked[:MOST_PAIRED]):
        for second in ranked[place + 1 :]:
            together = len(holders[first] & holders[second])
            if together < len(holders[first]):
                ordered = sorted((first, second), key=lambda c: _rank((c,)))
                pairs[tuple(ordered)] = together
    return pairs


def _preferred(options: dict[Conditions, int], slack: int) -> Conditions | None:
    """Return the condition, or pair of conditions, of the likeliest kind; None without options.

    `options` maps each condition or pair to the number of its exceptions: passing cases that meet
    it. An option is considered if it has at most `slack` more exceptions than the option with the
    fewest.
    """
    if not options:
        return None
    enough = min(options.values()) + slack
    near = [option for option, count in options.items() if count <= enough]
    return min(near, key=lambda option: (_places(option), options[option], _rank(option)))


def _places(conditions: Conditions) -> int:
    return sum(PREFERENCE.index(condition.kind) for condition in conditions)


def _rank(conditions: Conditions) -> tuple[int, list[tuple[int, int, str, str]]]:
    """Return a sort key that puts preferred conditions first; different conditions never tie."""
    keys = []
    for kind, subject, value in conditions:
        number = value if isinstance(value, int) else 0
        # The widest multiple and the tightest bound that still hold say most.
        weight = number if kind == "at_most" else -number
        keys.append((PREFERENCE.index(kind), weight, subject, str(value)))
    return _places(conditions), keys


def _parted(failing: Facts, passing: Facts) -> Iterator[tuple[TriggeringFeature | None, list[int]]]:
    """Yield parts of the failing cases, as indices, each with the feature that explains it.

    The feature is None for a part that no feature explains.
    """
    rest = list(range(len(failing)))
    while rest:
        feature = _trigger([failing[i] for i in rest], passing)
        part = None
        if feature is None and passing and len(rest) > 2:
            part = _largest_part(failing, rest, passing)
        if part is None:
            yield feature, rest
            return
        yield _trigger([failing[i] for i in part], passing), part
        rest = [i for i in rest if i not in set(part)]


def _largest_part(failing: Facts, rest: list[int], passing: Facts) -> list[int] | None:
    """Return the failing cases of `rest` that the best single condition explains, or None.

    Cases are given and returned as indices.
    """
    with_it = Counter(condition for i in rest for condition in failing[i])
    without = Counter(condition for facts in passing for condition in facts)
    options = [
        condition
        for condition, count in with_it.items()
        if FEWEST_IN_PART <= count < len(rest) and without[condition] <= NEARLY_NONE * count
    ]
    if not options:
        return None
    best = min(options, key=lambda c: (without[c] - with_it[c], _rank((c,))))
    return [i for i in rest if best in failing[i]]
