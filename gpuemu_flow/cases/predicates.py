"""Conditions under which cases may fail: typed predicates about the facts of a case."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence

from gpuemu_flow.cases.facts import ANY, ELEMENTS, INFINITE, CaseFacts
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json

STEPS = (2, 4, 8, 16, 32, 64, 128)
"""Numbers of which a dim may be a multiple in a condition."""

LARGEST_POWER = 20

Value = int | float | str | tuple[str, ...]


@dataclass(frozen=True)
class Predicate:
    """One statement about a case.

    Attributes
    ----------
    kind : str
        A key of `SENTENCES`.
    subject : str
        The dim or input that the statement is about; empty means any input.
    value : int, float, str or tuple of str
        Value that the subject is compared with: a bound, another dim, layouts, strategies.
    """

    kind: str
    subject: str
    value: Value = ""

    def holds(self, facts: CaseFacts) -> bool:
        """Tell whether the statement is true for a case with these facts."""
        kind, subject, value = self.kind, self.subject, self.value
        if kind in _OF_SIZES:
            return _size_holds(kind, facts.sizes.get(subject), value, facts)
        if kind == "strategy":
            return isinstance(value, tuple) and facts.strategies.get(subject) in value
        if kind == "layout":
            return isinstance(value, tuple) and facts.layouts.get(subject) in value
        if kind == "holds":
            return (subject, value) in facts.marks
        name, _, side = kind.rpartition("_")
        measured = facts.measures.get((subject, name))
        if measured is None or not isinstance(value, (int, float)):
            return False
        return measured >= value if side == "above" else measured <= value

    @property
    def of_sizes(self) -> bool:
        """Tell whether the statement is about sizes of dims."""
        return self.kind in _OF_SIZES

    @property
    def sentence(self) -> str:
        """Return the statement in words, such as ``N is not a multiple of 128``."""
        subject = self.subject or "an input"
        value = self.value
        if self.kind == "holds":
            return MARKS[str(value)].format(s=subject)
        if self.kind == "not_multiple" and value == 2:
            return f"{subject} is odd"
        if self.kind == "multiple" and value == 2:
            return f"{subject} is even"
        if isinstance(value, float) and abs(value) <= TINY and self.kind in _OF_SIGNS:
            nonzero, zero = _OF_SIGNS[self.kind]
            beyond = value > 0.0 if self.kind in _FROM else value < 0.0
            return (nonzero if beyond else zero).format(s=subject)
        shown = " or ".join(value) if isinstance(value, tuple) else value
        shown = f"{shown + 0.0:.4g}" if isinstance(shown, float) else shown
        return SENTENCES[self.kind].format(s=subject, v=shown)

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON, with the sentence."""
        value = list(self.value) if isinstance(self.value, tuple) else self.value
        return {
            "kind": self.kind,
            "subject": self.subject,
            "value": value,
            "sentence": self.sentence,
        }

    @classmethod
    def from_json(cls, data: Json) -> Predicate:
        """Rebuild from `to_json`'s result, or raise KeyError or TypeError."""
        value = data["value"]
        return cls(
            str(data["kind"]),
            str(data["subject"]),
            tuple(map(str, value)) if isinstance(value, list) else value,
        )


SENTENCES = {
    "above": "{s} is above {v}",
    "at_most": "{s} is at most {v}",
    "multiple": "{s} is a multiple of {v}",
    "not_multiple": "{s} is not a multiple of {v}",
    "power_of_two": "{s} is a power of two",
    "not_power_of_two": "{s} is not a power of two",
    "equal": "{s} and {v} are equal",
    "different": "{s} and {v} differ",
    "larger": "{s} is larger than {v}",
    "strategy": "the values of {s} are of the strategy {v}",
    "layout": "the layout of {s} is {v}",
    "largest_above": "{s} holds an element ≥ {v}",
    "largest_below": "no element of {s} is above {v}",
    "lowest_below": "{s} holds an element ≤ {v}",
    "lowest_above": "no element of {s} is below {v}",
    "magnitude_above": "{s} holds an element of a magnitude ≥ {v}",
    "magnitude_below": "no element of {s} has a magnitude above {v}",
    "row_least_top_below": "the largest element of a row of {s} is ≤ {v}",
    "row_least_magnitude_below": "no element of some row of {s} has a magnitude above {v}",
    "row_range_above": "the elements of a row of {s} differ by {v} or more",
    "value_above": "{s} is {v} or more",
    "value_below": "{s} is {v} or less",
    "row_offset_above": "a row of {s} has a mean of {v} times its standard deviation, or more",
}

MARKS = {
    "scattered": "{s} is not contiguous",
    "nan": "{s} holds NaN",
    "infinite": "{s} holds Inf",
    "plus_inf": "{s} holds +Inf",
    "minus_inf": "{s} holds -Inf",
    "minus_inf_row": "{s} holds a row of nothing but -Inf",
    "not_finite": "{s} holds NaN or Inf",
    "negative": "{s} holds a negative element",
    "negative_row": "{s} holds a row of negative elements only",
    "zero_row": "{s} holds a row of zeros",
    "zero": "{s} holds a zero",
    "constant_row": "{s} holds a row whose elements are all equal",
    "ties": "{s} holds equal elements in a row",
    "duplicates": "{s} holds a value more than once",
    "true": "{s} holds True",
    "false": "{s} holds False",
    "true_row": "{s} holds a row of nothing but True",
    "false_row": "{s} holds a row of nothing but False",
    "is_true": "{s} is True",
    "is_false": "{s} is False",
    "is_nan": "{s} is NaN",
    "is_zero": "{s} is 0",
    "tied_top": "{s} holds a row whose largest element occurs twice",
}

TINY = 2.0**-100
"""Magnitude up to which a bound stands for zero: an element of such a size has no visible effect on
float32 results."""

_FROM = ("largest_above", "magnitude_above", "row_range_above")
_OF_SIGNS = {
    "largest_above": ("{s} holds a positive element", "{s} holds an element ≥ 0"),
    "lowest_below": ("{s} holds a negative element", "{s} holds an element ≤ 0"),
    "magnitude_above": ("{s} holds an element other than 0",) * 2,
    "row_range_above": ("{s} holds a row whose elements differ",) * 2,
    "row_least_top_below": (
        "{s} holds a row of negative elements only",
        "the largest element of a row of {s} is ≤ 0",
    ),
}
"""Sentences of bounds next to zero: the first if zero is beyond the bound, else the second."""

_OF_SIZES = (
    "above", "at_most", "multiple", "not_multiple", "power_of_two", "not_power_of_two",
    "equal", "different", "larger",
)  # fmt: skip

_PRIOR = {
    "holds": -1.0, "strategy": -2.0, "not_multiple": -2.0, "above": -2.0, "equal": -2.0,
    "layout": -3.5, "magnitude_above": -1.5, "largest_above": -2.0, "lowest_below": -2.0,
    "row_least_magnitude_below": -2.5, "row_offset_above": -2.5, "row_range_above": -2.5,
    "row_least_top_below": -3.0, "multiple": -4.0, "power_of_two": -4.0, "not_power_of_two": -4.0,
    "value_above": -2.0, "value_below": -2.0, "at_most": -3.0, "larger": -4.0, "different": -4.5,
}  # fmt: skip
"""Logarithms of the prior probability that a cause is of a kind: known causes of kernel bugs are
likeliest, layouts and parities least likely."""

UNLIKELY = -4.5

BOTH = -6.0
"""Added to the logarithm of a cause's prior for a second condition."""


def prior(predicate: Predicate) -> float:
    """Return the log of a condition's prior probability of being the cause, up to a constant."""
    found = _PRIOR.get(predicate.kind, UNLIKELY)
    if predicate.kind == "strategy" and isinstance(predicate.value, tuple):
        found -= 0.3 * (len(predicate.value) - 1)
    if predicate.kind == "holds" and predicate.value == "scattered":
        found = _PRIOR["layout"] + 0.5
    if predicate.kind == "layout" and isinstance(predicate.value, tuple):
        found -= 0.5 * (len(predicate.value) - 1)
    if predicate.kind == "not_multiple" and predicate.value == 2:
        found -= 0.5
    if predicate.subject == ELEMENTS:
        found -= 0.5
    if predicate.subject == ANY and predicate.kind not in _OF_SIZES:
        found -= 0.5
    return found


def _size_holds(kind: str, size: int | None, value: Value, facts: CaseFacts) -> bool:
    if size is None:
        return False
    if kind in _OF_TWO:
        other = facts.sizes.get(str(value))
        return other is not None and _OF_TWO[kind](size, other)
    if kind in ("power_of_two", "not_power_of_two"):
        return (size > 0 and size & (size - 1) == 0) == (kind == "power_of_two")
    bound = int(value) if isinstance(value, (int, float)) else 0
    if kind in ("above", "at_most"):
        return (size > bound) == (kind == "above")
    return (size % bound == 0) == (kind == "multiple")


_OF_TWO: dict[str, Callable[[int, int], bool]] = {
    "equal": lambda size, other: size == other > 1,
    "different": operator.ne,
    "larger": operator.gt,
}


def candidates(facts: Sequence[CaseFacts], fails: Sequence[bool]) -> Iterator[Predicate]:
    """Yield every condition that may distinguish failing cases from passing ones.

    Bounds on the values of inputs, and unions of strategies and layouts, are derived from the
    cases.
    """
    if not facts:
        return
    sizes = sorted({name for each in facts for name in each.sizes})
    for name in sizes:
        yield from _of_one_dim(name, {each.sizes.get(name, 0) for each in facts})
    for first, second in itertools.combinations([s for s in sizes if s != ELEMENTS], 2):
        yield Predicate("equal", first, second)
        yield Predicate("different", first, second)
        yield Predicate("larger", first, second)
        yield Predicate("larger", second, first)
    for name in facts[0].strategies:
        yield from _choices("strategy", name, [each.strategies[name] for each in facts], fails)
        yield from _choices("layout", name, [each.layouts[name] for each in facts], fails)
    for subject, mark in sorted({key for each in facts for key in each.marks}):
        yield Predicate("holds", subject, mark)
    yield from _bounds(facts, fails)


def _of_one_dim(name: str, seen: Iterable[int]) -> Iterator[Predicate]:
    largest = max(seen, default=0)
    for step in STEPS if name != ELEMENTS else ():
        yield Predicate("not_multiple", name, step)
        yield Predicate("multiple", name, step)
    if name != ELEMENTS:
        yield Predicate("power_of_two", name)
        yield Predicate("not_power_of_two", name)
    bounds = {1 << power for power in range(LARGEST_POWER + 1)}
    bounds |= {3 << power for power in range(LARGEST_POWER)}
    for bound in sorted(bounds):
        if bound <= largest:
            yield Predicate("above", name, bound)
            yield Predicate("at_most", name, bound)


def _choices(
    kind: str, name: str, chosen: Sequence[str], fails: Sequence[bool]
) -> Iterator[Predicate]:
    """Yield predicates about the strategies, or the layouts, of one input.

    First, one predicate is yielded for each value that occurs in `chosen`. Up to two predicates for
    sets of values follow. The first set has the values for which more than 30 % of the cases fail,
    the second set those for which more than 60 % fail. A set is left out if it has fewer than two
    values, or all of them.

    Parameters
    ----------
    kind : str
        ``strategy`` or ``layout``.
    name : str
        The input's name.
    chosen : sequence of str
        The strategy or layout of each case.
    fails : sequence of bool
        True for each case that fails.
    """
    number: dict[str, list[int]] = {}
    for choice, failed in zip(chosen, fails, strict=True):
        counts = number.setdefault(choice, [0, 0])
        counts[failed] += 1
    for choice in sorted(number):
        yield Predicate(kind, name, (choice,))
    for share in (0.3, 0.6):
        union = tuple(
            sorted(c for c, (passed, bad) in number.items() if bad > share * (bad + passed))
        )
        if 1 < len(union) < len(number):
            yield Predicate(kind, name, union)


LEAST_OFFSET = 3.0
"""Least bound on means of rows, in standard deviations; smaller means are ordinary."""

_ABOVE = ("largest", "magnitude", "row_range", "row_offset", "value")
_BELOW = ("lowest", "value", "row_least_top", "row_least_magnitude")


def _bounds(facts: Sequence[CaseFacts], fails: Sequence[bool]) -> Iterator[Predicate]:
    """Yield, for each measure, the lower and upper bounds that best separate failing cases."""
    for subject, name in sorted({key for each in facts for key in each.measures}):
        pairs = [
            (each.measures[subject, name], failed)
            for each, failed in zip(facts, fails, strict=True)
            if (subject, name) in each.measures
        ]
        for side in ("above", "below"):
            if (side == "above" and name in _ABOVE) or (side == "below" and name in _BELOW):
                for bound in _best_bounds(pairs, side):
                    if name != "row_offset" or bound >= LEAST_OFFSET:
                        yield Predicate(f"{name}_{side}", subject, bound)


def bounds_tried(facts: Sequence[CaseFacts]) -> int:
    """Return the number of bounds on measures from which `candidates` chooses the best ones.

    Each distinct value of a measure counts as one bound.
    """
    keys = {key for each in facts for key in each.measures}
    return sum(len({each.measures.get(key) for each in facts}) for key in keys)


def _best_bounds(pairs: list[tuple[float, bool]], side: str) -> list[float]:
    ordered = sorted(pairs, reverse=side == "above")
    total = sum(failed for _, failed in ordered)
    scored: list[tuple[int, float]] = []
    bad = good = 0
    for place, (value, failed) in enumerate(ordered[:-1]):
        bad, good = bad + failed, good + (not failed)
        beyond = ordered[place + 1][0]
        # A bound that only Inf exceeds is left out: a mark already tells of Inf.
        if beyond != value and bad and abs(value) < INFINITE:
            scored.append(((total - bad) * 2 + good, _between(value, beyond)))
    return [bound for _, bound in sorted(scored, key=lambda each: each[0])[:2]]


WHOLE = 1 << 20
"""Size up to which whole numbers are taken for counts, with no values between neighbours."""


def _between(inside: float, outside: float) -> float:
    """Return a bound between two values, with few digits, that includes `inside` only."""
    if inside.is_integer() and outside.is_integer() and max(abs(inside), abs(outside)) < WHOLE:
        return inside
    middle = (inside + outside) / 2
    if inside * outside > 0:
        middle = (1 if inside > 0 else -1) * (abs(inside) ** 0.5 * abs(outside) ** 0.5)
    low, high = min(inside, outside), max(inside, outside)
    if not math.isfinite(middle):
        middle = 2.0 * (outside if math.isfinite(outside) else inside)
    for digits in range(1, 17):
        short = float(f"{middle:.{digits}g}")
        if low < short < high:
            return short
    return inside
