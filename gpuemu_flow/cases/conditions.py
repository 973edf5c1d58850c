"""Simple statements about a case, as data: a dim that is odd, a layout, a strategy, a dtype."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from gpuemu_flow.cases.shapes import is_prime
from gpuemu_flow.expressions import is_made_of
from gpuemu_flow.types import Case

STEPS = (128, 64, 32, 16, 8)
"""Numbers of which a dim may be a multiple in a condition, the widest tile first."""

LARGEST_POWER = 24
"""Bounds on dims are powers of two up to 2 to this power."""


class Condition(NamedTuple):
    """One statement about a case.

    Attributes
    ----------
    kind : str
        A key of `_SENTENCES`.
    subject : str
        The dim, two dims (written ``M and N``) or the input; empty for the case as a whole.
    value : str or int
        The subject's value, or the value that it is compared with.
    """

    kind: str
    subject: str
    value: str | int

    @property
    def sentence(self) -> str:
        """Return the condition in words, such as ``N is not a multiple of 128``."""
        of_subject = f" of {self.subject}" if self.subject else ""
        return _SENTENCES[self.kind].format(s=self.subject, of_s=of_subject, v=self.value)


_SENTENCES = {
    "dtype": "dtype {v}",
    "layout": "layout {v}{of_s}",
    "not_layout": "{s} not {v}",
    "strategy": "strategy {v}{of_s}",
    "shape_class": "shape class {v}",
    "size": "{s} is {v}",
    "above": "{s} above {v}",
    "at_most": "{s} at most {v}",
    "multiple": "{s} is a multiple of {v}",
    "not_multiple": "{s} is not a multiple of {v}",
    "odd": "{s} is odd",
    "even": "{s} is even",
    "power_of_two": "{s} is a power of two",
    "not_power_of_two": "{s} is not a power of two",
    "prime": "{s} is a prime above 2",
    "maximum": "{s} is at its maximum, {v}",
    "equal": "{s} are equal",
    "different": "{s} differ",
    "elements_above": "an input of more than {v} elements",
}

PREFERENCE = (
    "strategy", "layout", "not_layout", "dtype", "not_multiple", "equal", "size", "odd", "multiple",
    "not_power_of_two", "power_of_two", "above", "maximum", "different", "at_most", "even", "prime",
    "elements_above", "shape_class",
)  # fmt: skip
"""All kinds. Of conditions that distinguish cases equally well, the first one is reported."""


def sizes_of(case: Case) -> dict[str, int]:
    """Map the dims of a case to their sizes, leaving out dims that are expressions of other dims.

    Without a schema, map the axes of inputs instead: ``x[-1]`` is the last axis of ``x``. Of inputs
    with the same shape, only the first is used.
    """
    if case.dims:
        # A dim given by an expression says no more than the dims in the expression.
        names = {name for name, _ in case.dims}
        return {name: size for name, size in case.dims if not is_made_of(name, names)}
    sizes: dict[str, int] = {}
    seen: set[tuple[int, ...]] = set()
    for spec in case.inputs:
        if spec.shape in seen:
            continue
        seen.add(spec.shape)
        rank = len(spec.shape)
        sizes.update({f"{spec.name}[{axis - rank}]": n for axis, n in enumerate(spec.shape)})
    return sizes


def conditions_of(case: Case, maxima: dict[str, int] | None = None) -> Iterator[Condition]:
    """Yield every condition that holds for a case.

    Parameters
    ----------
    case : Case
    maxima : dict of str to int, optional
        Largest size of each dim in all cases that are compared.
    """
    yield Condition("dtype", "", case.dtype)
    yield Condition("shape_class", "", case.shape_class)
    if len(case.inputs) > 1:
        yield Condition("layout", "", case.layout)
        yield Condition("strategy", "", case.strategy)
    for spec in case.inputs:
        yield Condition("layout", spec.name, spec.layout)
        if spec.layout != "contiguous":
            yield Condition("not_layout", spec.name, "contiguous")
        yield Condition("strategy", spec.name, spec.strategy)
    sizes = sizes_of(case)
    for name, size in sizes.items():
        yield from _size_conditions(name, size)
        if maxima and size == maxima.get(name, -1) and size > 1:
            yield Condition("maximum", name, size)
    for (first, n), (second, m) in itertools.combinations(sizes.items(), 2):
        if n == m and n > 1:
            yield Condition("equal", f"{first} and {second}", "")
        elif n != m:
            yield Condition("different", f"{first} and {second}", "")
    largest = max((math.prod(spec.shape) for spec in case.inputs), default=0)
    for power in range(8, LARGEST_POWER + 1):
        if largest > 1 << power:
            yield Condition("elements_above", "", 1 << power)


def _size_conditions(name: str, size: int) -> Iterator[Condition]:
    if size <= 1:
        yield Condition("size", name, size)
    yield Condition("odd" if size % 2 else "even", name, "")
    for step in STEPS:
        yield Condition("not_multiple" if size % step else "multiple", name, step)
    power = size > 0 and size & (size - 1) == 0
    yield Condition("power_of_two" if power else "not_power_of_two", name, "")
    if size > 2 and is_prime(size):
        yield Condition("prime", name, "")
    for exponent in range(LARGEST_POWER + 1):
        bound = 1 << exponent
        yield Condition("above" if size > bound else "at_most", name, bound)
