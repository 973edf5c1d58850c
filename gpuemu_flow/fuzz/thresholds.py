"""Find the exact multiple or threshold in a condition on sizes.

After random cases, several numbers are possible: "not a multiple of 16" and "not a multiple of 8"
agree until a case of size 24 is run, and a threshold may be anywhere between two tested sizes. Here
known failing cases are run again with a chosen size of one dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpuemu_flow.cases.facts import CaseFacts
from gpuemu_flow.cases.predicates import Predicate
from gpuemu_flow.quick_dataclass import dataclass

MOST_RUNS = 24
"""Maximum number of cases to run for one condition."""

SIZES = 2
"""Number of sizes that have to agree before a multiple is halved."""

REACH = 12
"""Number of multiples around a known size that are tried until one of them can be run."""

TILE = 8

Known = tuple[CaseFacts, bool]

Probe = Callable[[Sequence[Predicate], str, int], bool | None]
"""Callable that tells whether a case fails in which the predicates hold and a dim has a given size;
it returns None if there is no such case."""


@dataclass
class _Allowance:
    """The number of sizes that may still be tried."""

    left: int = MOST_RUNS


def with_exact_numbers(
    predicates: Sequence[Predicate], known: Sequence[Known], probe: Probe
) -> tuple[Predicate, ...]:
    """Return the condition with exact multiples and thresholds of sizes, found by further cases.

    Parameters
    ----------
    predicates : sequence of Predicate
        The condition, which new cases have confirmed.
    known : sequence of (CaseFacts, bool)
        All cases judged so far, and whether they fail.
    probe : callable
        Runs a case with a chosen size.

    Returns
    -------
    tuple of Predicate
        The exact condition; `predicates` unchanged if a known failing case contradicts it.
    """
    left = _Allowance()
    found = list(predicates)
    for search, kinds in (
        (_multiple, ("not_multiple", "multiple")),
        (_threshold, ("above", "at_most")),
    ):
        for place, predicate in enumerate(found):
            if predicate.kind in kinds:
                others = [*found[:place], *found[place + 1 :]]
                found[place] = search(predicate, others, known, probe, left)
    contradicted = any(
        failed and not all(each.holds(facts) for each in found) for facts, failed in known
    )
    return tuple(predicates) if contradicted else tuple(found)


def _multiple(
    predicate: Predicate,
    others: Sequence[Predicate],
    known: Sequence[Known],
    probe: Probe,
    left: _Allowance,
) -> Predicate:
    """Halve the number in a predicate as long as new cases agree; return the new predicate.

    For example, take the predicate "a multiple of 16". `SIZES` new cases are judged, whose sizes
    are odd multiples of 8. If the predicate "a multiple of 8" predicts correctly which of them
    fail, it replaces the first one, and 4 is tried next.

    Parameters
    ----------
    predicate : Predicate
        A condition that the size of one dim is, or is not, a multiple of a number.
    others : sequence of Predicate
        Further conditions, which hold in all new cases.
    known : sequence of (CaseFacts, bool)
        All cases judged so far, and whether they fail.
    probe : Probe
        Judges a new case with a chosen size.
    left : _Allowance
        Limits the number of new cases.
    """
    name, step = predicate.subject, int(str(predicate.value))
    as_half = predicate.kind == "multiple"  # how cases with such sizes end if the half is true
    while step > 2:
        half = step // 2
        sizes = _odd_multiples(half, _sizes(known, name, failed=True))
        verdicts = _verdicts(sizes, others, name, probe, left)
        if len(verdicts) < SIZES or any(failed is not as_half for failed in verdicts):
            break
        step = half
    return Predicate(predicate.kind, name, step)


def _odd_multiples(half: int, about: Sequence[int]) -> list[int]:
    """List odd multiples of `half`, sorted by their distance from the median of `about`."""
    if not about:
        return []
    center = sorted(about)[len(about) // 2]
    first = max(0, (center // half - REACH) // 2)
    found = [half * (2 * number + 1) for number in range(first, first + REACH)]
    return sorted(found, key=lambda size: abs(size - center))


def _verdicts(
    sizes: Iterable[int],
    others: Sequence[Predicate],
    name: str,
    probe: Probe,
    left: _Allowance,
) -> list[bool]:
    found: list[bool] = []
    for size in sizes:
        if len(found) == SIZES or left.left <= 0:
            break
        failed = probe(others, name, size)
        if failed is not None:
            left.left -= 1
            found.append(failed)
    return found


def _threshold(
    predicate: Predicate,
    others: Sequence[Predicate],
    known: Sequence[Known],
    probe: Probe,
    left: _Allowance,
) -> Predicate:
    """Make the threshold in a predicate exact, by bisection between sizes that pass and fail.

    Parameters
    ----------
    predicate : Predicate
        A condition that the size of one dim is above a threshold, or that it is not above it.
    others : sequence of Predicate
        Further conditions, which hold in all new cases.
    known : sequence of (CaseFacts, bool)
        All cases judged so far, and whether they fail.
    probe : Probe
        Judges a new case with a chosen size.
    left : _Allowance
        Limits the number of new cases. If they are used up, the result is less exact.

    Returns
    -------
    Predicate
        `predicate` itself if the known cases give no interval to bisect.
    """
    name, bound = predicate.subject, int(str(predicate.value))
    fit = [each for each in known if all(other.holds(each[0]) for other in others)]
    rising = predicate.kind == "above"
    failing = _sizes(fit, name, failed=True)
    passing = [size for size in _sizes(fit, name, failed=False) if (size <= bound) == rising]
    if not failing or not passing:
        return predicate
    bad, good = (min(failing), max(passing)) if rising else (max(failing), min(passing))
    if (good >= bad) == rising:
        return predicate
    while abs(bad - good) > 1 and left.left > 0:
        middle = (bad + good) // 2
        low, high = max(min(bad, good) + 1, middle - REACH), min(max(bad, good), middle + REACH)
        between = sorted(range(low, high), key=lambda size: abs(size - middle))
        size, failed = _first(between, others, name, probe)
        if failed is None:
            break
        left.left -= 1
        bad, good = (size, good) if failed else (bad, size)
    if rising and any(not failed and facts.sizes.get(name, 0) >= bad for facts, failed in fit):
        good = _rounded(good)
    return Predicate(predicate.kind, name, good if rising else bad)


def _rounded(size: int) -> int:
    """Round a size down to a multiple of `TILE`, unless the size is at most two tiles.

    Kernels usually have thresholds at multiples of a tile. The threshold found may be too high:
    just above the true threshold, a bug affects the fewest elements, so that a case may pass there.
    """
    return size // TILE * TILE if size > 2 * TILE else size


def _first(
    sizes: Iterable[int], others: Sequence[Predicate], name: str, probe: Probe
) -> tuple[int, bool | None]:
    """Return the first size with which a case can be run, and whether the case fails.

    If no case can be run, return (0, None).
    """
    for size in sizes:
        failed = probe(others, name, size)
        if failed is not None:
            return size, failed
    return 0, None


def _sizes(known: Iterable[Known], name: str, *, failed: bool) -> list[int]:
    """List the sizes that a dim has in the failing cases if `failed`, else in the passing cases."""
    return [facts.sizes[name] for facts, bad in known if bad is failed and name in facts.sizes]
