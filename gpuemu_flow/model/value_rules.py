"""Recipes of inputs, as data: shape, dtype, strategy, range, and further rules for the values."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Struct, field

Bound = int | float | str
"""A number, or an expression of dims such as ``V-1``."""

Number = int | float
T = TypeVar("T")


Shape = tuple[int, ...]

CORE_STRATEGIES = ("uniform", "normal", "small", "negative", "sparse", "ties", "integers")
STRESS_STRATEGIES = ("wide", "offset", "extremes", "special")
STRATEGIES = CORE_STRATEGIES + STRESS_STRATEGIES


class Unused(Struct, frozen=True):
    """The elements of an input beyond a length: those of an index along an axis that is too large.

    Each axis of the input that holds the lengths is one of this input's `axes`. With a `table`, an
    input of integers, this input's first axis has pages: row b continues in page ``table[b, 1]``.
    """

    lengths: str
    along: int
    axes: tuple[int, ...] = ()
    table: str = ""

    @property
    def others(self) -> tuple[str, ...]:
        """Return the inputs that say which elements are unused."""
        return (self.lengths, self.table) if self.table else (self.lengths,)


class ValueRule(Struct, frozen=True, omit_defaults=True):
    """Rules for the values of one input, which hold under every strategy."""

    kind: str = ""  # one of `KINDS`; empty for values that only have bounds
    # Bounds, both included; expressions of dims are computed for each case
    low: Bound | None = None
    high: Bound | None = None
    # Values to insert among the others; if there is no other rule, the only values
    # ("inf", "-inf" and "nan" are words here, which JSON can hold)
    values: tuple[bool | Number | str, ...] = ()
    # Fraction of elements taken from `values`; for a mask, fraction of true elements
    share: float | None = None
    # True to draw NaN and Inf, too; False to draw none; None if the range decides
    nonfinite: bool | None = None
    to: int | str | None = None  # for offsets, the last value; for lengths, the largest length
    of: str = ""  # the input into which indices point, or which has the scale of a quantized input
    axis: int = 0  # the axis of `of`
    bits: int = 0  # number of bits of a quantized value
    descending: bool = False  # true if sorted values decrease
    allow_empty_rows: bool = False  # true if a row of a mask may be all false
    total: int | str | None = None  # sum of the values
    # Relation of each element to the corresponding element of another input: ``<=``, ``<``, ``>=``,
    # ``>``, ``==``, ``!=``, or ``cumsum``: the offsets of the other input's lengths
    relation: str = ""
    other: str = ""
    # Relations between places of the last axis, as of boxes: ``(0, "<=", 2)``
    columns: tuple[tuple[int, str, int], ...] = ()
    unused: Unused | None = None  # the elements that no op may use, which hold NaN and Inf
    optional: bool = False  # true if None replaces the input in some cases
    # For a scalar that is not a number, the possible values; the input is an index into them
    choices: tuple[Any, ...] = ()
    generate: str = ""  # the user's function that returns the values, as ``file.py:function``

    @property
    def numbers(self) -> tuple[Number, ...]:
        """Return `values` as numbers."""
        return tuple(float(v) if isinstance(v, str) else v for v in self.values)

    @property
    def concerns_whole(self) -> bool:
        """Tell whether the rule concerns the input as a whole, not each element by itself."""
        return bool(self.kind and self.kind not in ELEMENTWISE) or bool(
            self.relation or self.total is not None or self.generate or self.columns
        )


PATTERNS: dict[str, tuple[str, ...]] = {
    "permutation": ("random", "identity", "reversed", "rotated", "swapped_ends"),
    "sorted": ("random", "ties", "constant", "ends", "steps"),
    "offsets": (
        "random", "even", "empty_first", "empty_last", "all_in_one", "all_in_last", "every_other",
    ),
    "lengths": ("random", "full", "one_full", "short", "alternate"),
    "mask": ("random", "all", "prefix", "suffix", "one_first", "one_last", "alternate", "empty"),
    "one_hot": ("random", "first", "last", "diagonal"),
    "positive": ("random", "tiny", "large", "wide", "ones"),
    "probabilities": ("random", "even", "certain", "zeros", "tiny_tail"),
    "symmetric": ("random", "diagonal", "zero", "rank_one", "ties", "graded"),
    "positive_definite": ("random", "identity", "diagonal", "nearly_singular", "graded"),
    "unique": ("random", "consecutive", "spread", "descending"),
    "indices": ("random", "ends", "last", "first", "ascending", "few", "descending"),
    "quantized": ("random", "full", "saturated", "zero_rows", "small"),
    "packed": ("random", "low_only", "high_only", "ends", "all_values"),
}  # fmt: skip
"""The adversarial strategies of each kind, in the order in which cases take them."""

SCALAR = "scalar"
"""The kind of arguments that are Python numbers; its values are taken in turn."""
ABSENT = "absent"
"""The strategy of an optional input in a case that has None in its place."""
PATTERNS[SCALAR] = ("random", "lowest", "highest", "near_lowest")

RAGGED = ("offsets", "lengths")
"""Kinds of ragged batches."""
KINDS = tuple(kind for kind in PATTERNS if kind != SCALAR)
ELEMENTWISE = ("positive", "indices", "packed")
"""Kinds whose elements do not depend on each other."""


def is_kept_finite(
    kind: str, low: Bound | None, high: Bound | None, rule: ValueRule | None
) -> bool:
    """Tell whether an input's range is the only reason why it gets no NaN or Inf."""
    if kind != "float":
        return False
    if rule is not None:
        if rule.kind or rule.nonfinite is not None:
            return False
        low, high = (low, high) if rule.low is None else (rule.low, rule.high)
    return low is not None and high is not None


def strategies_of(rule: ValueRule | None) -> tuple[str, ...]:
    """Return the strategies by which the values of an input can be drawn."""
    known: tuple[str, ...] = STRATEGIES
    if rule is not None and rule.kind == SCALAR and rule.values:
        known = tuple(f"pick{n}" for n in range(len(rule.values)))
    elif rule is not None and rule.kind:
        known = PATTERNS[rule.kind]
    return (*known, ABSENT) if rule is not None and rule.optional else known


GENERATE_FAILED_SLUG, GENERATE_RESULT_SLUG = "generate-failed", "generate-result"
GENERATE_DIFFERS_SLUG, NOT_CALLED_SLUG = "generate-nondeterministic", "generate-not-called"
GENERATOR_SLUGS = (
    GENERATE_FAILED_SLUG, GENERATE_RESULT_SLUG, GENERATE_DIFFERS_SLUG, NOT_CALLED_SLUG,
)  # fmt: skip


class GeneratedValues(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Values that the user's function returned for one input, or the reason why there are none."""

    data: str = ""  # the array's bytes in C order, compressed, in base 64
    # The error of the function; empty if there was none
    slug: str = ""
    message: str = ""
    hint: str = ""
    file: str = ""  # file of the function, relative to the workspace
    line: int = 0  # line of the error in `file`; 0 if unknown


def always(value: T) -> T:
    """Return a field's default that JSON states all the same, in a struct that omits defaults."""
    return field(default_factory=lambda: value)


class InputSpec(Struct, frozen=True, omit_defaults=True):
    """Recipe of one input tensor of a case."""

    name: str
    shape: Shape
    dtype: str  # canonical dtype name
    # One of `types.LAYOUTS`: the real layout of the tensor in memory
    layout: str = always("contiguous")
    # The way in which the values are drawn: one of `types.STRATEGIES` or, if the rule has a kind,
    # one of the strategies that `PATTERNS` has for this kind
    strategy: str = always("uniform")
    # Index in the op's ``input_names``; it names the random stream (``input_<position>``)
    position: int = always(0)
    # Range of the values from the op's schema, both ends included
    low: Number | None = always(None)
    high: Number | None = always(None)
    # If above 0, both ends of the range are inserted among the values. Only the first cases of a
    # run in which the input has this range get the ends; `ends` numbers these cases from 1.
    ends: int = 0
    # Number of the variety of values that the input shows, counted from 1; 0 leaves the variety to
    # chance. The first cases with a strategy show its varieties in turn; see `cases.turns`.
    turn: int = 0
    # Constants of the op's and the reference's sources: they and the numbers next to them are among
    # the values
    near: tuple[float, ...] = ()
    rule: ValueRule | None = None  # further rules of the schema for the values
    # The values, if the rule names a function that returns them and the function was called
    given: GeneratedValues | None = None

    @property
    def is_generated(self) -> bool:
        """Tell whether the values come from the user's function."""
        return self.rule is not None and bool(self.rule.generate) and self.strategy != ABSENT

    @property
    def has_values(self) -> bool:
        """Tell whether the values can be made now.

        They cannot if the user's function that returns them has not been called yet or has failed.
        """
        return not self.is_generated or (self.given is not None and not self.given.slug)

    @property
    def demands(self) -> str:
        """Return `ends`, `turn` and `near` as a word, such as ``ends1turn2near20.0_-0.5``.

        Those that demand nothing are left out.
        """
        counted = {"ends": self.ends, "turn": self.turn, "near": "_".join(map(repr, self.near))}
        return "".join(f"{name}{count}" for name, count in counted.items() if count)
