"""Simpler values for a failing case: zeros where possible, else 1, small integers, few digits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.cases.candidates import Array, Candidate, Search
from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.model.types import DTYPES
from gpuemu_flow.numerics.dtypes import dtype_name

FEW_DIGITS = (1, 2, 3)
EXACT = 2.0**53
"""Integers below this limit are exact in float64, in which rules for many elements compute."""

Rule = Callable[[NDArray[np.float64]], NDArray[np.float64]]
Simplicity = tuple[float, ...]
"""Orders values: finite before NaN and Inf, then by decimal digits, exponent, magnitude, sign."""


class Domain(Struct, frozen=True):
    """The values that elements of one input may have."""

    dtype: np.dtype[Any]
    # The schema's range, both ends included
    low: float | None = None
    high: float | None = None

    @property
    def kind(self) -> str:
        return DTYPES[dtype_name(self.dtype) or ""].kind

    def number(self, value: Any) -> int | float:
        return float(value) if self.kind == "float" else int(value)

    def element(self, number: float) -> Any | None:
        if self.kind != "float":
            bits = 1 if self.kind == "bool" else 8 * self.dtype.itemsize
            low, high = (-(1 << bits - 1), 1 << bits - 1) if self.kind == "int" else (0, 1 << bits)
            if not low <= number < high:
                return None
        else:
            number = float(number)
        with np.errstate(all="ignore"):
            element = np.array(number).astype(self.dtype)
        rounded = self.number(element[()])
        if not math.isfinite(rounded) or (self.low is not None and rounded < self.low):
            return None
        if self.high is not None and rounded > self.high:
            return None
        return element[()]

    def rest(self) -> Any | None:
        """Return the simplest element in the range; None if none is found. The numbers 0, 1 and -1
        are tried first. The ends of the range and the integers beside them are tried next, in the
        order of their magnitudes."""
        ends = [end for end in (self.low, self.high) if end is not None and math.isfinite(end)]
        near = sorted((n for end in ends for n in (end, math.ceil(end), math.floor(end))), key=abs)
        numbers = [0, 1, -1, *near]
        found = (self.element(n) for n in numbers)
        return next((element for element in found if element is not None), None)

    def simplicity(self, element: Any) -> Simplicity:
        """Return a rank that is smaller for simpler elements; see `Simplicity`."""
        number = self.number(element)
        if not math.isfinite(number):
            return (1.0,)
        if self.kind == "float":
            own = dtype_name(self.dtype) in ("float16", "float32", "float64")
            narrow = element if own else np.float32(element)
            text = np.format_float_scientific(narrow, unique=True, trim="-")
        else:
            text = f"{number:e}" if abs(number) < 1 << 20 else _integer_scientific(int(number))
        mantissa, _, exponent = text.lstrip("-").partition("e")
        digits = len(mantissa.replace(".", "").rstrip("0"))
        negative = math.copysign(1.0, number) < 0
        return (0.0, digits, abs(int(exponent)), abs(float(number)), float(negative))

    def simpler(self, element: Any) -> list[Any]:
        """Return elements that are simpler than the given element, simplest first."""
        own = self.simplicity(element)
        numbers = _simpler_numbers(self.number(element))
        elements = (self.element(n) for n in numbers)
        ranked = {self.simplicity(e): e for e in elements if e is not None}
        return [ranked[rank] for rank in sorted(ranked) if rank < own]


def _integer_scientific(number: int) -> str:
    digits = str(abs(number))
    return f"{digits[0]}.{digits[1:]}e{len(digits) - 1}"


def _simpler_numbers(number: float) -> Iterator[float]:
    yield from (0, 1, -1)
    if not math.isfinite(number) or number == 0:
        return
    sign = -1 if number < 0 else 1
    yield from (2, 2 * sign, 3 * sign)
    exact = int(number)
    yield exact
    yield sign * (abs(exact) // 2)
    yield exact - sign
    lead, _, tail = f"{abs(number):.0e}".partition("e")
    exponent = int(tail)
    for digits in FEW_DIGITS:
        if isinstance(number, int):
            yield round(number, digits - 1 - exponent)
        else:
            yield float(f"{number:.{digits - 1}e}")

    def power(digit: int, exponent: int) -> float:
        if isinstance(number, int):
            return sign * digit * int(10.0**exponent)
        return sign * float(f"{digit}e{exponent}")

    for digit in (int(lead), int(lead) // 2, int(lead) - 1):
        yield power(digit, exponent)
    if abs(exponent) > 1:
        towards_one = 1 if exponent < 0 else -1
        yield power(1, int(exponent / 2))
        yield power(1, exponent + towards_one)


def find_domains(inputs: Mapping[str, Array], schema: OpSchema | None) -> dict[str, Domain]:
    """Return the domain of each input: its dtype, and the range that the schema gives it. An input
    that the schema does not name has no limits."""
    ranges = {t.name: (t.low, t.high) for t in schema.inputs} if schema is not None else {}
    return {
        name: Domain(array.dtype, *ranges.get(name, (None, None))) for name, array in inputs.items()
    }


class ElementSet(Struct, frozen=True):
    """A set of elements of several inputs. `owners` has the index of each element's input, and
    `positions` its flat position among the values that `Candidate.stored` returns."""

    owners: NDArray[np.intp]
    positions: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.owners)

    def __getitem__(self, where: slice) -> ElementSet:
        return ElementSet(self.owners[where], self.positions[where])

    def without(self, where: slice) -> ElementSet:
        return ElementSet(np.delete(self.owners, where), np.delete(self.positions, where))


class ValueShrinker:
    """Makes the values of the best candidate simpler."""

    def __init__(self, search: Search, domains: Mapping[str, Domain]) -> None:
        self._search = search
        self._domains = domains
        rests = {name: domain.rest() for name, domain in domains.items()}
        self._rests = {name: rest for name, rest in rests.items() if rest is not None}
        self._names = list(self._rests)

    def shrink(self) -> None:
        self._zero_inputs()
        self._zero_elements()
        steps = -1
        while steps != self._search.steps:
            steps = self._search.steps
            self._simplify_together()
            self._simplify_elements()
            if self._search.steps != steps:
                self._zero_elements()

    def _active(self) -> ElementSet:
        owners, positions = [], []
        for number, name in enumerate(self._names):
            stored = self._search.best.stored(name)
            unsigned = np.dtype(f"u{stored.itemsize}")
            rest = np.asarray(self._rests[name], stored.dtype).reshape(1).view(unsigned)
            found = np.flatnonzero(np.ascontiguousarray(stored).reshape(-1).view(unsigned) != rest)
            owners.append(np.full(len(found), number, np.intp))
            positions.append(found)
        if not owners:
            return ElementSet(np.empty(0, np.intp), np.empty(0, np.intp))
        return ElementSet(np.concatenate(owners), np.concatenate(positions))

    def _changed(self, elements: ElementSet, change: Callable[[str, Array], Any]) -> Candidate:
        """Return the best candidate with `change` applied to some elements."""
        best = self._search.best
        changed = {}
        for number in np.unique(elements.owners):
            name = self._names[number]
            where = elements.positions[elements.owners == number]
            stored = best.stored(name).copy()
            flat = stored.reshape(-1)
            flat[where] = change(name, flat[where])
            changed[name] = stored
        return best.with_stored(changed)

    def _zeroed(self, elements: ElementSet) -> Candidate:
        return self._changed(elements, lambda name, _: self._rests[name])

    def _zero_inputs(self) -> None:
        active = self._active()
        self._search.accept(self._zeroed(active), "all values to zero")
        for number, name in enumerate(self._names):
            own = np.flatnonzero(active.owners == number)
            if len(own) and len(own) < len(active):
                chosen = ElementSet(active.owners[own], active.positions[own])
                self._search.accept(self._zeroed(chosen), f"{name}: all values to zero")

    def _zero_elements(self) -> None:
        """Try the simplest value on runs of elements; halve the runs until they have one element.
        This is delta debugging by complements (Zeller and Hildebrandt, "Simplifying and isolating
        failure-inducing input", 2002). The search ends when no single element can be zeroed."""
        mark, first = len(self._search.log), len(self._active())
        try:
            self._zero_runs()
        finally:
            if count := first - len(self._active()):
                self._search.log[mark:] = [f"{count} value{'s' * (count > 1)} to zero"]

    def _zero_runs(self) -> None:
        active = self._active()
        length = (len(active) + 1) // 2
        while len(active):
            before = len(active)
            start = 0
            while start < len(active):
                run = slice(start, start + length)
                count = len(active[run])
                if self._search.accept(self._zeroed(active[run]), f"{count} values to zero"):
                    active = active.without(run)
                else:
                    start += length
            if length == 1 and len(active) == before:
                return
            length = max(1, min(length, len(active)) // 2)

    def _simplify_together(self) -> None:
        """Try each kind of simplification on all elements at once."""
        for what, rule in _RULES:
            active = self._active()
            if not len(active):
                return
            change = partial(self._ruled, rule)
            self._search.accept(self._changed(active, change), f"values to {what}")

    def _ruled(self, rule: Rule, name: str, old: Array) -> Array:
        return _apply(rule, self._domains[name], old)

    def _simplify_elements(self) -> None:
        active = self._active()
        for n in range(len(active)):
            while self._simplify(active[n : n + 1]):
                pass

    def _simplify(self, one: ElementSet) -> bool:
        name = self._names[one.owners[0]]
        old = self._search.best.stored(name).reshape(-1)[one.positions[0]]
        for new in self._domains[name].simpler(old):
            candidate = self._changed(one, partial(_replacement, new))
            if self._search.accept(candidate, f"{name}: {old!s} to {new!s}"):
                return True
        return False


def _replacement(new: Any, _name: str, _old: Array) -> Any:
    return new


def _few_digits(values: NDArray[np.float64], digits: int) -> NDArray[np.float64]:
    """Round to significant digits; return NaN for magnitudes outside about 1e-20 to 1e20. The
    caller leaves values unchanged where the result is NaN. Powers of ten up to 1e22 are exact in
    float64. So the results are the float64 numbers nearest to the decimal numbers, and rounding
    them again does not change them."""
    places = digits - 1 - np.floor(np.log10(np.abs(values)))
    places[~(np.abs(places) <= 20)] = np.nan
    up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
    rounded: NDArray[np.float64] = np.round(values * up / down) / up * down
    return rounded


_RULES: tuple[tuple[str, Rule], ...] = (
    ("1", np.ones_like),
    ("1 and -1", np.sign),
    ("integers", np.trunc),
    ("small integers", lambda values: np.trunc(values) - np.trunc(values).min()),
    *((f"{n} digits", partial(_few_digits, digits=n)) for n in FEW_DIGITS),
)


def _apply(rule: Rule, domain: Domain, old: Array) -> Array:
    """Return the rule's values where they are finite and in the domain, old values elsewhere."""
    with np.errstate(all="ignore"):
        wide = old.astype(np.float64)
        new = rule(wide).astype(old.dtype)
        back = new.astype(np.float64)
        allowed = np.isfinite(back) & (np.abs(wide) < EXACT)
        if domain.low is not None:
            allowed &= back >= domain.low
        if domain.high is not None:
            allowed &= back <= domain.high
    return np.where(allowed, new, old)
