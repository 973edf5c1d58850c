"""Conditions on a case (sizes, layouts, scalars, values) that separate failing from passing ones.

A condition predicts that a case fails or passes, or nothing: a wrong size, layout or scalar shows
only on cases with ordinary values, so a case of zeros that passes is no evidence against it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.cases.generate import input_values
from gpuemu_flow.model.syntax import is_made_of
from gpuemu_flow.model.types import (
    ABSENT,
    DTYPES,
    PLAIN_STRATEGIES,
    STRATEGIES,
    Case,
    effective_layout,
)
from gpuemu_flow.model.verdicts import Condition
from gpuemu_flow.numerics.dtypes import dtype_name, to_float64

TINY = 4
"""Sizes below are too few to say that an op is right up to them."""

STEPS = (2, 4, 8, 16, 32, 64, 128)
INFINITE = 1e300
MOST_LISTED = 3
"""Maximum number of a scalar's listed values that a condition names one by one."""
ELEMENTS = "the number of elements"
"""Stands among the sizes for the number of elements of the largest input."""
TIMES = "·"
"""Stands between two dims whose product is among the sizes: only as a rival, which new cases have
to rule out before a condition on one of the dims is stated."""

SENTENCES = {
    "scattered": "{s} is not contiguous",
    "layout": "the layout of {s} is {v}",
    "absent": "{s} is not given",
    "is_true": "{s} is True",
    "is_false": "{s} is False",
    "equal": "{s} and {v} are equal",
    "not_multiple": "{s} is not a multiple of {v}",
    "multiple": "{s} is a multiple of {v}",
    "above": "{s} is above {v}",
    "at_most": "{s} is at most {v}",
    "value_above": "{s} is {v} or more",
    "value_below": "{s} is {v} or less",
    "not_power_of_two": "{s} is not a power of two",
    "power_of_two": "{s} is a power of two",
    "larger": "{s} is larger than {v}",
    "different": "{s} and {v} differ",
    "nan": "{s} holds NaN",
    "plus_inf": "{s} holds +Inf",
    "minus_inf": "{s} holds -Inf",
    "infinite": "{s} holds Inf",
    "not_finite": "{s} holds NaN or Inf",
    "negative": "{s} holds a negative element",
}
"""All kinds that may be stated. Of those that no case tells apart, the first one is."""

OF_SIZES = ("equal", "different", "larger", "multiple", "not_multiple", "power_of_two",
            "not_power_of_two", "above", "at_most")  # fmt: skip
OF_VALUES = ("nan", "plus_inf", "minus_inf", "infinite", "not_finite", "negative", "strategy",
             "absent", "zero", "ties", "largest_above", "lowest_below", "magnitude_above",
             "magnitude_below", "row_top_below")  # fmt: skip
"""Kinds that are about the values of inputs. Those without a sentence are never stated: they are
rivals, which new cases have to rule out before another condition is stated."""

_FAR = ("largest_above", "lowest_below", "magnitude_above")
_SAME = {"negative": ("lowest_below",), "plus_inf": _FAR, "minus_inf": _FAR, "infinite": _FAR,
         "not_finite": _FAR}  # fmt: skip
"""Kinds without a sentence that say no more than a kind with one."""

_BORDERS = {
    "above": True, "at_most": False, "value_above": True, "value_below": False,
    "largest_above": True, "lowest_below": False, "magnitude_above": True,
    "magnitude_below": False, "row_top_below": False,
}  # fmt: skip
"""Kinds that compare a number with a border: whether cases beyond the border fail, or up to it."""


class Facts:
    """What is known of a case before it runs; its values are made only where they are asked for."""

    def __init__(
        self,
        case: Case,
        ordinary: Sequence[str] = PLAIN_STRATEGIES,
        given: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self.case = case
        self._given = given or {}  # values that are not those that the case's text tells
        self.sizes = _sizes_of(case)
        free = [spec for spec in case.inputs if spec.shape or spec.strategy == ABSENT]
        self.ordinary = not self.is_empty and all(
            spec.strategy not in (*STRATEGIES, ABSENT)
            or (spec.strategy in ordinary and not spec.turn)  # a turn puts in zeros, for example
            for spec in free
        )

    @property
    def is_empty(self) -> bool:
        return any(0 in spec.shape for spec in self.case.inputs)

    @property
    def repeats(self) -> bool:
        """Tell whether an input repeats its values, which hides where they are taken from."""
        return any(spec.layout == "expanded" for spec in self.case.inputs)

    @cached_property
    def tags(self) -> frozenset[tuple[str, str, str]]:
        found: set[tuple[str, str, str]] = set()
        for spec in self.case.inputs:
            found.add(("strategy", spec.name, spec.strategy))
            if spec.strategy == ABSENT:
                found.add(("absent", spec.name, ""))
                continue
            layout = effective_layout(spec.layout, spec.shape)
            found.add(("layout", spec.name, layout))
            if layout not in ("contiguous", "offset"):
                found.add(("scattered", spec.name, ""))
        return frozenset(found)

    @cached_property
    def marks(self) -> frozenset[tuple[str, str, str]]:
        """Return what the values of each input hold, as (kind, input, "")."""
        return frozenset(mark for mark, holds in self._values[0].items() if holds)

    def number(self, kind: str, subject: str) -> float | None:
        """Return the number that a condition of this kind compares with its border."""
        if kind in OF_SIZES:
            return self.sizes.get(subject)
        return self._values[1].get((kind.rpartition("_")[0], subject))

    @cached_property
    def _values(self) -> tuple[dict[tuple[str, str, str], bool], dict[tuple[str, str], float]]:
        marks: dict[tuple[str, str, str], bool] = {}
        numbers: dict[tuple[str, str], float] = {}
        for spec in self.case.inputs:
            if spec.strategy == ABSENT or not spec.has_values or 0 in spec.shape:
                continue
            values = self._given.get(spec.name)
            values = input_values(self.case, spec) if values is None else values
            if dtype_name(values.dtype) is None:
                continue
            kind, name = DTYPES[spec.dtype].kind, spec.name
            if not spec.shape and kind == "bool":
                marks["is_true" if values else "is_false", name, ""] = True
                continue
            given = to_float64(values)
            if not spec.shape:
                numbers["value", name] = float(np.clip(given, -INFINITE, INFINITE))
                continue
            nan, plus, minus = np.isnan(given), given == np.inf, given == -np.inf
            marks["nan", name, ""] = bool(nan.any())
            marks["plus_inf", name, ""] = bool(plus.any())
            marks["minus_inf", name, ""] = bool(minus.any())
            marks["infinite", name, ""] = bool((plus | minus).any())
            marks["not_finite", name, ""] = bool((nan | plus | minus).any())
            marks["negative", name, ""] = bool((given < 0).any())
            marks["zero", name, ""] = bool((given == 0).any())
            ordered = np.sort(given, axis=-1)
            marks["ties", name, ""] = bool((ordered[..., 1:] == ordered[..., :-1]).any())
            known = np.clip(np.where(nan, 0.0, given), -INFINITE, INFINITE)
            numbers["largest", name] = float(known.max())
            numbers["lowest", name] = float(known.min())
            numbers["magnitude", name] = float(np.abs(known).max())
            numbers["row_top", name] = float(known.max(axis=-1).min())
        return marks, numbers


def _sizes_of(case: Case) -> dict[str, int]:
    """Map the dims of a case to their sizes; without a schema, the axes of its inputs."""
    sizes: dict[str, int] = {}
    if case.dims:
        # A dim given by an expression says no more than the dims in the expression.
        names = {name for name, _ in case.dims}
        sizes = {name: size for name, size in case.dims if not is_made_of(name, names)}
    else:
        for spec in {spec.shape: spec for spec in reversed(case.inputs)}.values():
            rank = len(spec.shape)
            sizes |= {f"{spec.name}[{axis - rank}]": n for axis, n in enumerate(spec.shape)}
    if len(sizes) > 1:
        pairs = itertools.combinations(tuple(sizes.items()), 2)
        sizes |= {f"{first}{TIMES}{second}": n * m for (first, n), (second, m) in pairs}
        sizes[ELEMENTS] = max((math.prod(spec.shape) for spec in case.inputs), default=0)
    return sizes


class Rule(msgspec.Struct, frozen=True):
    """A condition under which cases fail. Of numbers, `value` is the border up to which cases are
    known to fail, and `other` the one up to which they pass; nothing is predicted between them."""

    kind: str
    subject: str
    value: int | float | str = ""
    other: float = 0.0

    @property
    def key(self) -> tuple[str, str, int | float | str]:
        return self.kind, self.subject, "" if self.kind in _BORDERS else self.value

    @property
    def is_border(self) -> bool:
        """Tell whether the rule compares a number with a border."""
        return self.kind in _BORDERS

    @property
    def may_be_stated(self) -> bool:
        """Tell whether the condition says anything: not that a dim is above 1, for example."""
        says = self.kind in SENTENCES and TIMES not in self.subject
        return says and not (self.kind == "above" and self.other < TINY)

    def may_be_taken_for(self, rival: Rule) -> bool:
        """Tell whether a rule that no case tells from this one says something else."""
        if rival.subject == self.subject and self.kind in OF_SIZES and rival.kind in OF_SIZES:
            return rival.key != self.key  # few sizes are allowed, or many would tell them apart
        known = (*SENTENCES, "strategy", *_SAME.get(self.kind, ()))
        return rival.subject not in (self.subject, ELEMENTS) or rival.kind not in known

    def distance(self, facts: Facts) -> float:
        """Return how far the case's number is from the border."""
        number = facts.number(self.kind, self.subject)
        if number is None:
            return 0.0
        return min(abs(number - float(self.value)), abs(number - self.other))

    def predicts(self, facts: Facts) -> bool | None:
        """Tell whether a case fails (True) or passes (False); None if it may do either."""
        holds = self._holds(facts)
        if holds and not self.shows(facts):
            return None
        return holds

    def shows(self, facts: Facts) -> bool:
        """Tell whether a case that meets the condition has to show the error, or may hide it."""
        hidden = not facts.ordinary or (facts.repeats and self.kind not in ("scattered", "layout"))
        if facts.is_empty or (hidden and self.kind not in OF_VALUES):
            return False
        dims = self.subject.split(TIMES)
        own = dims if len(dims) > 1 or self.kind in ("above", "at_most") else ()
        return all(size > 1 for name, size in facts.sizes.items() if name not in own)

    def _holds(self, facts: Facts) -> bool | None:
        kind, value = self.kind, self.value
        if kind in _BORDERS:
            number = facts.number(kind, self.subject)
            if number is None:
                return None
            beyond = 1 if _BORDERS[kind] else -1
            if beyond * number >= beyond * float(value):
                return True
            return False if beyond * number <= beyond * self.other else None
        if kind in OF_SIZES:
            size, other = facts.sizes.get(self.subject), facts.sizes.get(str(value), 0)
            # Nothing is odd about a dim of size 1: there is nothing to reduce, share or mix up.
            return None if size in (None, 0, 1) else _size_holds(kind, size, value, other)
        if kind in ("strategy", "layout", "scattered", "absent"):
            return (kind, self.subject, value) in facts.tags
        inputs = facts.case.inputs
        known = any(spec.name == self.subject and spec.has_values for spec in inputs)
        return (kind, self.subject, value) in facts.marks if known else None

    def condition(self, *, whole: bool, listed: Mapping[float, str] = {}) -> Condition:
        """Return the condition as it is reported; `whole` says that the border is a whole number. A
        border that is not known exactly is given with the one up to which cases pass; of a scalar
        that has only the `listed` values, these are, as they are written there."""
        kind, value = self.kind, self.value
        if kind not in _BORDERS:
            sentence = SENTENCES[kind].format(s=self.subject, v=value)
            if value == 2 and kind in ("multiple", "not_multiple"):
                sentence = f"{self.subject} is {'even' if kind == 'multiple' else 'odd'}"
            return Condition(kind, self.subject, value, sentence)
        shown, beyond = as_written(float(value)), _BORDERS[kind]
        exact = whole and abs(float(value) - self.other) == 1
        if kind == "above" and exact:
            shown = as_written(self.other)
        elif kind in OF_SIZES:
            kind = "value_above" if beyond else "value_below"
        sentence = SENTENCES[kind].format(s=self.subject, v=shown)
        sign = 1 if beyond else -1
        bad = [number for number in listed if sign * number >= sign * float(value)]
        if 0 < len(bad) <= MOST_LISTED:
            good = [number for number in listed if sign * number <= sign * self.other]
            which, others = (" or ".join(listed[n] for n in numbers) for numbers in (bad, good))
            sentence = f"{self.subject} is {which} (not when it is {others})"
        elif not exact:
            sentence += (
                f" (not when it is {as_written(self.other)} or {'less' if beyond else 'more'})"
            )
        return Condition(kind, self.subject, self.other if kind == "above" else value, sentence)


def meets(case: Case, given: Mapping[str, NDArray[Any]], condition: Condition) -> bool:
    """Tell whether a case with these inputs meets a condition as it is reported."""
    facts, kind, subject = Facts(case, given=given), condition.kind, condition.subject
    if kind not in _BORDERS:
        return Rule(kind, subject, condition.value)._holds(facts) is not False
    number: float | None = facts.sizes.get(subject)
    number = facts.number(kind, subject) if number is None else number
    border = float(condition.value)
    if number is None or kind == "above":
        return number is None or number > border
    return number >= border if _BORDERS[kind] else number <= border


def as_written(number: float) -> str:
    return f"{number:.0f}" if number == int(number) and abs(number) < 1e9 else f"{number:.4g}"


def _size_holds(kind: str, size: int, value: int | float | str, other: int) -> bool:
    if kind in ("equal", "different", "larger"):
        return {"equal": size == other, "different": size != other, "larger": size > other}[kind]
    if kind in ("power_of_two", "not_power_of_two"):
        return (size > 0 and size & (size - 1) == 0) is (kind == "power_of_two")
    return (size % int(value) == 0) is (kind == "multiple")


def necessary(known: Sequence[tuple[Facts, bool]]) -> list[Rule]:
    """Return the rules on sizes, layouts and strategies that no failing case contradicts."""
    failing = [facts for facts, failed in known if failed]
    return [
        rule
        for rule in _rules(failing[0])
        if all(rule.predicts(facts) is not False for facts in failing)
    ]


def separating(known: Sequence[tuple[Facts, bool]]) -> list[Rule]:
    """Return the rules that no known case contradicts, in the order of `SENTENCES`. `known` are
    cases, each with whether it failed."""
    failing = [facts for facts, failed in known if failed]
    passing = [facts for facts, failed in known if not failed]
    if not failing or not passing:
        return []
    found = [
        rule
        for rule in (
            *_rules(failing[0]),
            *(Rule(*mark) for mark in failing[0].marks),
            *_with_borders(failing, passing),
        )
        if all(rule.predicts(facts) is not False for facts in failing)
        and all(rule.predicts(facts) is not True for facts in passing)
        and any(rule.predicts(facts) is False for facts in passing)
        and _varies(rule.subject, (*failing, *passing))
    ]
    order = {kind: n for n, kind in enumerate(SENTENCES)}
    return sorted(found, key=lambda rule: order.get(rule.kind, len(order)))


def _varies(subject: str, cases: Sequence[Facts]) -> bool:
    """Tell whether no dim of a product has always the same size, as cases could not rule it out."""
    names = subject.split(TIMES) if TIMES in subject else []
    return all(len({facts.sizes.get(name) for facts in cases}) > 1 for name in names)


def _rules(facts: Facts) -> Iterator[Rule]:
    sizes = {name: size for name, size in facts.sizes.items() if name != ELEMENTS}
    for name, size in sizes.items():
        for step in STEPS:
            yield Rule("not_multiple" if size % step else "multiple", name, step)
    sizes = {name: size for name, size in sizes.items() if TIMES not in name}
    for name, size in sizes.items():
        yield Rule("power_of_two" if size & (size - 1) == 0 else "not_power_of_two", name)
    for (first, n), (second, m) in itertools.permutations(sizes.items(), 2):
        if n > m:
            yield Rule("larger", first, second)
        if first < second:
            yield Rule("equal" if n == m else "different", first, second)
    yield from (Rule(*tag) for tag in facts.tags)


def _with_borders(failing: Iterable[Facts], passing: Sequence[Facts]) -> Iterator[Rule]:
    """Yield the rules with a border between all failing cases and the passing ones that count."""
    failing = list(failing)
    names = {name for facts in failing for name in facts.sizes}
    names |= {spec.name for facts in failing for spec in facts.case.inputs}
    for kind, beyond in _BORDERS.items():
        for name in sorted(names):
            shown = [facts for facts in passing if Rule(kind, name).shows(facts)]
            each = _numbers(kind, name, failing)
            others = _numbers(kind, name, shown)
            if len(each) < len(failing) or len(others) < len(shown) or not others:
                continue
            border = min(each) if beyond else max(each)
            other = max(others) if beyond else min(others)
            if other < border if beyond else other > border:
                yield Rule(kind, name, border, other)


def _numbers(kind: str, name: str, cases: Iterable[Facts]) -> list[float]:
    return [number for facts in cases if (number := facts.number(kind, name)) is not None]
