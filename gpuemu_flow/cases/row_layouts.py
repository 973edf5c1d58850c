"""Add layouts that need several dims to a designed set of cases that was planned without them.

The effect of such a layout depends on the sizes: if there is only one row, no row is padded. So
these layouts are chosen when the sizes are known. Nothing else of a case changes: its shape class,
value strategy, target input and sizes stay. A schema's cases therefore have the same values with
these layouts as without them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gpuemu_flow.cases.design import Combination
from gpuemu_flow.cases.shapes import Sizes
from gpuemu_flow.numerics.effective_layouts import LEAST_RANKS, effective_layout

Shaped = tuple[Combination, Sizes]

ALIKE = ("contiguous", "offset")
"""Layouts for which even a program that distinguishes layouts runs the same code."""

BEARABLE = 1
"""Largest loss that is accepted: a shape class is then not tested in C order. See `_price`."""


def with_row_layouts(
    designed: Sequence[Shaped], layouts: Sequence[str], block: int
) -> list[Shaped]:
    """Give each layout to two designed cases, an early one and a late one, where possible."""
    relaid = list(designed)
    for late in (False, True):
        for layout in layouts:
            place = _best_place(layout, relaid, block, late=late)
            if place is not None:
                combination, sizes = relaid[place]
                relaid[place] = (combination._replace(layout=layout), sizes)
    return relaid


def _best_place(layout: str, cases: Sequence[Shaped], block: int, *, late: bool) -> int | None:
    """Return the index of the case whose layout is best replaced by `layout`.

    An early case is preferred or, with `late`, a late one. The first case, which is the likeliest
    to reveal a bug, keeps its layout. The result is None if the layout suits no case.
    """
    counts = Counter(c.layout for c, _ in cases if c.layout not in LEAST_RANKS)
    given_up = (
        "contiguous" if "contiguous" in counts else max(counts, key=counts.__getitem__, default="")
    )
    ranked = []
    for place, (combination, sizes) in enumerate(cases[1:], 1):
        lacking = _lacking(layout, combination, sizes)
        if combination.layout != given_up or lacking is None:
            continue
        others = [
            c for c, _ in (*cases[:place], *cases[place + 1 :]) if c.layout in (given_up, *ALIKE)
        ]
        price = lacking + _price(combination, others)
        distance = -(place // block) if late else place // block
        ranked.append((price > BEARABLE, distance, price, -place))
    return -min(ranked)[-1] if ranked else None


def _lacking(layout: str, combination: Combination, sizes: Sizes) -> int | None:
    """Count the inputs of a case on which a layout would have no effect.

    If the case has a target input with enough dims for the layout, only that input is considered.
    Otherwise, all inputs with enough dims are considered. Empty tensors are left out.
    """
    least = LEAST_RANKS[layout]
    target = combination.target
    alone = target is not None and len(sizes.shapes[target]) >= least
    concerned = [sizes.shapes[target]] if alone and target is not None else sizes.shapes
    able = [shape for shape in concerned if len(shape) >= least and 0 not in shape]
    shown = sum(effective_layout(layout, shape) == layout for shape in able)
    return len(able) - shown if shown else None


def _price(combination: Combination, others: Sequence[Combination]) -> int:
    """Return the loss of coverage if a case gave up its layout, from 0 (none) to 3.

    The loss is 2 if the case's strategy is ``special`` or occurs in none of `others`. It is 1 more
    if the case's shape class occurs in none of `others`.
    """
    strategy = all(other.strategy != combination.strategy for other in others)
    shape_class = all(other.shape_class != combination.shape_class for other in others)
    # Each input has one case in which it alone holds NaN and Inf.
    return 2 * (strategy or combination.strategy == "special") + shape_class
