"""Choose the variety of values that an input shows in each of the first cases of a run.

A strategy can draw several varieties of values. A tensor with few rows has no room for all of them
at once: under `negative`, for example, the single row of a vector is either near -100 or near 0.
One variety can also hide another one: if a tensor holds NaN, its sum does not depend on an
infinity. Chance would then decide whether a run tests a variety at all. The first cases in which an
input has a strategy therefore show the varieties of this strategy one after the other:

- `negative`, with at least 3 rows: in the first case, one row is near -100,000, or as near to it as
  the dtype allows.
- `negative`, with fewer rows: the third case has such a row. If there is only one row, it is near
  -100 in the first case, and near 0 in the second.
- `offset`, with fewer than 4 rows: in each case, the first row's values spread around the offset by
  a different amount. In the first case, this amount is about 0.01 for float32.
- `extremes`: in the first case, one number overflows when it is squared.
- `wide`, with several rows and no range: in the first case, the first row has only positive or
  only negative numbers, by turns from input to input. The product of the first rows of two
  neighbouring inputs is therefore far below 0.
- `wide`, with a single row: in the first case, the numbers are halfway between two steps of a
  quantiser.
- `wide`, with any number of rows: in the second case, magnitudes of all orders from 1 to about 500
  occur.
- `ties`: in the first case, each row has few different values. In the second case, all values are
  zeros, of both signs if the range allows negative numbers.
- `sparse`, with a single row: in the first case, the first half of the row is zeros.
- `special`: the first case has NaN and both infinities, the second has +Inf only, the third has a
  single NaN, and the fourth has -Inf everywhere; see `Turns.of` for the choice of these cases. In
  one further case, some of the input's NaN and infinities are copied to the other inputs that have
  the same shape and this strategy.
- `normal`, for an input that the op may compare with another input, which is drawn in another way:
  in two cases, a quarter of the values are copied from the other input.
- `normal`, with long rows: in three more cases, one row has a single zero, and another row has a
  single nonzero value; see `lone_values`.

Integers show only the varieties of `normal`. Booleans show only single zeros and nonzero values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from gpuemu_flow.cases.special_values import (
    LONE,
    LONE_TURNS,
    SHARING,
    SHARING_TURNS,
    lenders_of,
    may_hold_lone,
)
from gpuemu_flow.model.types import DTYPES, STRATEGIES, InputSpec

VARIETIES = {
    "negative": 3, "offset": 4, "extremes": 1, "wide": 2, "ties": 2, "special": 4, "sparse": 1,
    SHARING: len(SHARING_TURNS),
}  # fmt: skip
"""Number of first cases of a strategy that show its varieties."""
FEWER_ROWS = {"offset": 4, "sparse": 2}
"""Number of rows from which on a tensor has room for all varieties of a strategy."""
NEEDED = 3
"""Number of elements that NaN and both infinities need."""
SHARED_SPECIALS = (5, 6)
"""Turns of `special` in which inputs of one shape have NaN at the same places.

The first input of turn 5 lends them. Turn 6 is turn 1 of an input that takes them."""
ZEROS = ("ties", 2)
"""The strategy and turn of only zeros."""
MEDIUM = 32
"""Length that a vector of medium length exceeds."""
LONG = 0.5
"""Least length of a long row, relative to the longest row of the input so far."""


def holds_specials(spec: InputSpec) -> bool:
    """Tell whether NaN and infinities may be written into the values of an input."""
    rule = spec.rule
    return (
        spec.strategy == "special"
        and _is_free(spec)
        and (rule is None or rule.nonfinite is not False)
    )


def specials_lender(spec: InputSpec, inputs: Sequence[InputSpec]) -> InputSpec | None:
    if spec.strategy != "special" or spec.turn not in SHARED_SPECIALS:
        return None
    for other in inputs:
        if other.turn == SHARED_SPECIALS[0] and _may_share(other, spec):
            return None if other is spec else other
    return None


def _may_share(other: InputSpec, spec: InputSpec) -> bool:
    return other.shape == spec.shape and other.layout != "expanded" and holds_specials(other)


def _is_free(spec: InputSpec) -> bool:
    """Tell whether an input has floats, each of which may be changed without the others."""
    rule = spec.rule
    if DTYPES[spec.dtype].kind != "float" or 0 in spec.shape or spec.is_generated:
        return False
    return rule is None or not (rule.kind or rule.values or rule.concerns_whole)


class Turns:
    """Chooses the variety of values that each input shows in a case. The class counts the varieties
    that have been shown, separately for each input and strategy. The next case in which an input
    has the same strategy then shows the next variety."""

    def __init__(self) -> None:
        self._shown: Counter[tuple[str, str]] = Counter()
        self._lone: set[tuple[str, int]] = set()
        self._lent: set[str] = set()
        self._longest: Counter[str] = Counter()

    def of(self, inputs: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
        """Return the inputs of the next case, each with the variety that it is to show. The
        varieties of the strategy `special`, except for the first one, need a case in which no other
        input may have NaN or infinities. Otherwise, special values of two inputs could hide each
        other's effect: for example, the difference of two infinities is NaN."""
        alone = sum(map(holds_specials, inputs)) == 1
        turned = tuple(self._with_turn(spec, inputs, alone=alone) for spec in inputs)
        return self._with_shared_specials(self._with_lone(turned))

    def _with_lone(self, inputs: tuple[InputSpec, ...]) -> tuple[InputSpec, ...]:
        """Select at most one input to get lone values in this case; return all inputs. A lone value
        is the only zero or the only nonzero value in a row; see `lone_values`. Of the inputs that
        can get lone values (see `_lone_turn`), the one that has had them in the fewest cases is
        selected. No input is selected if any input has a strategy in `STRATEGIES` other than
        `normal`, since such a strategy can draw many zeros, which could hide the lone values."""
        for spec in inputs:
            width = spec.shape[-1] if spec.shape else 0
            self._longest[spec.name] = max(self._longest[spec.name], width)
        if any(spec.strategy in STRATEGIES and spec.strategy != LONE for spec in inputs):
            return inputs
        due = [(spec, self._lone_turn(spec)) for spec in inputs]
        free = [(self._shown[spec.name, "lone"], spec, turn) for spec, turn in due if turn]
        if not free:
            return inputs
        _, chosen, turn = min(free, key=lambda each: each[0])
        self._shown[chosen.name, "lone"] += 1
        self._lone.add((chosen.name, turn))
        return tuple(replace(spec, turn=turn) if spec is chosen else spec for spec in inputs)

    def _lone_turn(self, spec: InputSpec) -> int:
        """Return the number of the next way to write lone values to an input; 0 for none.

        A lone value is the only zero or the only nonzero value in a row. `LONE_TURNS` has the
        numbers of three ways to write lone values; see `lone_values.put_lone`. Each way is used in
        at most one case of an input. None is used if the input's strategy is not `normal`, or if it
        shows another variety of values in this case. Otherwise, the length of its rows decides:

        - If the rows are at least half as long as the input's longest rows so far, all three ways
          are possible.
        - If it is a shorter vector, but has more than `MEDIUM` elements, only the second way is.
        - In all other cases, none is.
        """
        if spec.turn or spec.ends or spec.strategy != LONE or not may_hold_lone(spec):
            return 0
        turns: tuple[int, ...] = ()
        if spec.shape[-1] >= LONG * self._longest[spec.name]:
            turns = LONE_TURNS
        elif len(spec.shape) == 1 and spec.shape[-1] > MEDIUM:
            turns = LONE_TURNS[1:2]
        return next((turn for turn in turns if (spec.name, turn) not in self._lone), 0)

    def _with_shared_specials(self, inputs: tuple[InputSpec, ...]) -> tuple[InputSpec, ...]:
        """Let one input lend NaN and infinities to other inputs of the same shape.

        Each borrower copies some of the lender's NaN and infinities to the same positions. Only
        inputs that may hold NaN and infinities take part.

        A strategy can draw several varieties of values. In a case, an input shows one chosen
        variety of its strategy, or none in particular.

        - The lender is the first input that shows none. If it has already lent in an earlier case,
          nothing is lent.
        - The borrowers are the inputs of the lender's shape that show none, or the first variety.
        """
        lender = next((spec for spec in inputs if not spec.turn and _may_share(spec, spec)), None)
        if lender is None or lender.name in self._lent:
            return inputs
        takers = {
            spec.name: SHARED_SPECIALS[spec.turn]
            for spec in inputs
            if spec is not lender and spec.turn in (0, 1) and _may_share(spec, lender)
        }
        if not takers:
            return inputs
        self._lent.add(lender.name)
        turns = {lender.name: SHARED_SPECIALS[0], **takers}
        return tuple(replace(spec, turn=turns.get(spec.name, spec.turn)) for spec in inputs)

    def _with_turn(self, spec: InputSpec, inputs: Sequence[InputSpec], *, alone: bool) -> InputSpec:
        key, elements = (spec.name, spec.strategy), math.prod(spec.shape)
        shown = self._shown[key]
        if shown >= VARIETIES.get(spec.strategy, 0):
            return spec
        if spec.strategy == SHARING:
            if not lenders_of(spec, inputs):
                return spec
        elif not _is_free(spec):
            return spec
        elif spec.strategy == "special":
            if not holds_specials(spec) or (not alone if shown else elements < NEEDED):
                return spec
        elif math.prod(spec.shape[:-1]) >= FEWER_ROWS.get(spec.strategy, math.inf):
            return spec
        self._shown[key] += 1
        return replace(spec, turn=shown + 1)
