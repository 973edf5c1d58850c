"""Choose the variety of values that an input shows in each of the first cases of a run.

A tensor has no room for all that a strategy can draw: a vector is a single row, near -100 or not,
and NaN in a sum hides an infinity. Chance would then decide whether a run meets a variety at all.
So the first cases in which an input has a strategy show its varieties in turn. They are:

- `negative`: a row near -100,000, for certain. Fewer than 3 rows are near -100, near 0 and near
  -100,000 in turn.
- `offset`, with fewer than 4 rows: each spread of the values around the offset, 0.01 first.
- `extremes`: a number that overflows when it is squared, for certain.
- `wide`: the first rows of an input and of the next input have opposite signs, so that a product of
  the two is far below 0; then magnitudes of all orders from 1 to 1000. In either case, a vector
  consists of halves.
- `ties`: a few values, then only zeros, of both signs if the range allows it.
- `sparse`, with a single row: its first half is zeros.
- `special`: NaN and both infinities, then a single +Inf, a single NaN, and only -Inf. In the first
  case in which several inputs of the same shape have this strategy, some NaN and infinities of one
  are also written into the others.
- `normal`, beside another input that is drawn in another way and may be compared with this one: a
  quarter of the values are values of that input, in two cases. Then, in three cases of long rows,
  a row with a single zero, and one with a single nonzero value. Integers have all of these, and
  booleans have the single values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gpuemu_flow.cases.lone_values import LONE, LONE_TURNS, may_hold_lone
from gpuemu_flow.cases.shared_values import SHARING, SHARING_TURNS, lenders_of
from gpuemu_flow.types import DTYPES, STRATEGIES, InputSpec

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
    """Return the input from which an input copies NaN and infinities; None if it copies none."""
    if spec.strategy != "special" or spec.turn not in SHARED_SPECIALS:
        return None
    for other in inputs:
        if other.turn == SHARED_SPECIALS[0] and _may_share(other, spec):
            return None if other is spec else other
    return None


def _may_share(other: InputSpec, spec: InputSpec) -> bool:
    return other.shape == spec.shape and other.layout != "expanded" and holds_specials(other)


def _is_free(spec: InputSpec) -> bool:
    """Tell whether an input's values are floats that no rule ties to each other."""
    rule = spec.rule
    if DTYPES[spec.dtype].kind != "float" or 0 in spec.shape or spec.is_generated:
        return False
    return rule is None or not (rule.kind or rule.values or rule.concerns_whole)


class Turns:
    """Chooses the variety of values that each input shows in a case.

    To take turns, it counts the varieties that each input has shown of each strategy.
    """

    def __init__(self) -> None:
        self._shown: Counter[tuple[str, str]] = Counter()
        self._lone: set[tuple[str, int]] = set()
        self._lent: set[str] = set()
        self._longest: Counter[str] = Counter()

    def of(self, inputs: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
        """Return the inputs of the next case, with the varieties that they are to show.

        Except for the first one, a variety of `special` is shown only in a case in which no other
        input may have NaN or infinities: the difference of two infinities is NaN.
        """
        alone = sum(map(holds_specials, inputs)) == 1
        turned = tuple(self._with_turn(spec, inputs, alone=alone) for spec in inputs)
        return self._with_shared_specials(self._with_lone(turned))

    def _with_lone(self, inputs: tuple[InputSpec, ...]) -> tuple[InputSpec, ...]:
        """Give lone values to the input that had them least often; see `lone_values`.

        Only inputs without another variety are considered. Nothing is done if any input has a
        strategy other than `normal`, because such strategies can draw many zeros, which could hide
        the lone values.
        """
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
        """Return the turn in which an input should have lone values now; 0 if it should have none.

        Its rows must be long. In the second turn, all elements of a vector but one are 0; for this
        turn, a vector of medium length is enough.
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
        """Let inputs of the same shape share NaN and infinities, once for each lending input.

        The lending input must have shown its first variety before, in which it alone had NaN.
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
