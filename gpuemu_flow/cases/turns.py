"""Decide which variety of values each of the few cases of a default run shows.

A tensor has no room for all that a strategy can draw: a vector is a single row, near -100 or not,
and NaN in a sum hides an infinity. Chance would then decide whether a run meets a variety at all.
So the first cases in which an input has a strategy show its varieties in turn. They are:

- `negative`: a row near -100,000, for certain. Fewer than 3 rows are near -100, near 0 and near
  -100,000 in turn.
- `offset`, fewer than 4 rows: the spreads, 0.01 first.
- `extremes`: a number that overflows when it is squared, for certain.
- `wide`: one sign in the first row of an input, and the other one in that of its neighbour, so that
  a product of the two is far below 0. A vector lies on halves. Then magnitudes of all orders from 1
  to 1000.
- `ties`: a few values, then only zeros.
- `special`: NaN and both infinities, then a single +Inf, a single NaN, and only -Inf.
- `normal`, beside another input that is drawn otherwise and may be compared with this one: a
  quarter of the values are values of that input, in two cases. Integers have these, too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gpuemu_flow.cases.shared_values import SHARING, lenders_of
from gpuemu_flow.types import DTYPES, InputSpec

VARIETIES = {
    "negative": 3, "offset": 4, "extremes": 1, "wide": 2, "ties": 2, "special": 4, SHARING: 2,
}  # fmt: skip
"""Number of first cases of a strategy that show its varieties."""
FEWER_ROWS = {"offset": 4}
"""Number of rows from which on a tensor has room for all varieties of a strategy."""
NEEDED = 3
"""Number of elements that NaN and both infinities need."""


def holds_specials(spec: InputSpec) -> bool:
    """Tell whether NaN and infinities may be written into the values of an input."""
    rule = spec.rule
    return (
        spec.strategy == "special"
        and _is_free(spec)
        and (rule is None or rule.nonfinite is not False)
    )


def _is_free(spec: InputSpec) -> bool:
    """Tell whether the values of an input are floats that do not depend on each other."""
    rule = spec.rule
    if DTYPES[spec.dtype].kind != "float" or 0 in spec.shape or spec.is_generated:
        return False
    return rule is None or not (rule.kind or rule.values or rule.concerns_whole)


class Turns:
    """Counts, for each input and strategy, the cases that showed a variety of values."""

    def __init__(self) -> None:
        self._shown: Counter[tuple[str, str]] = Counter()

    def of(self, inputs: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
        """Return the inputs of the next case, with the varieties that they are to show.

        After the first, a variety of `special` needs a case in which no other input has one: an
        infinity in each of two inputs makes NaN of a difference.
        """
        alone = sum(map(holds_specials, inputs)) == 1
        return tuple(self._with_turn(spec, inputs, alone=alone) for spec in inputs)

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
