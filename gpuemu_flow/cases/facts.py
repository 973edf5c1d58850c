"""Facts about a case, known before it runs: sizes, memory layouts, contents of its inputs."""

from __future__ import annotations

from collections.abc import Mapping

from gpuemu_flow.quick_dataclass import dataclass

ANY = ""
"""Stands for any float input; if there are several, it has the marks and measures of all values."""

ELEMENTS = "the number of elements"
"""Key among the sizes for the number of elements of the largest input."""

INFINITE = 1e300
"""Stands for Inf where values are compared."""

Key = tuple[str, str]
"""An input (or `ANY`) and a measure or mark."""


@dataclass(frozen=True)
class CaseFacts:
    """Facts about one case, which decide whether a predicate holds for the case.

    Attributes
    ----------
    sizes : mapping of str to int
        Sizes of the dims. If there are several dims, the key `ELEMENTS` has the number of elements
        of the largest input.
    layouts, strategies : mapping of str to str
        The layout and the strategy of each input.
    marks : frozenset of (str, str)
        Pairs of an input's name and a property of its values: ``("x", "nan")`` means that ``x`` has
        a NaN.
    measures : mapping of (str, str) to float
        Numbers that describe an input, by pairs of the input's name and a word for the number:
        ``("x", "largest")`` maps to the largest value of ``x``.
    """

    sizes: Mapping[str, int]
    layouts: Mapping[str, str]
    strategies: Mapping[str, str]
    marks: frozenset[Key]
    measures: Mapping[Key, float]
