"""Design of cases: first combinations likely to reveal bugs, then pairwise coverage.

Source of the idea: pairwise test design (Cohen, Dalal, Fredman and Patton, "The AETG system: an
approach to testing based on combinatorial design", 1997).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpuemu_flow.cases.shapes import Sizes
from gpuemu_flow.model.types import LEAST_RANKS, effective_layout

# Those likeliest to reveal bugs first; any that are not listed follow in the order of `types`.
REVEALING_STRATEGIES = (
    "normal", "negative", "special", "ties", "wide", "sparse", "small", "offset", "integers",
    "extremes", "uniform",
)  # fmt: skip

# (class, strategy, layout), each with the bug that it is to find. A plan leaves out entries with a
# member that it does not have; combinations after the agenda then cover their other members.
AGENDA = (
    ("tail", "negative", "contiguous"),  # tail mask of 0 in a max or a softmax
    ("pow2_plus_1", "normal", "strided"),  # last tile dropped; row pitch taken for granted
    ("prime", "normal", "transposed"),  # lost accumulation; strides ignored
    ("maximum", "uniform", "contiguous"),  # missing rescale between tiles; `=` for `+=`
    ("equal", "integers", "contiguous"),  # swapped axes, exact ops
    ("pow2_minus_1", "special", "contiguous"),  # NaN swallowed, masks of -Inf
    ("multiple_of_128", "wide", "contiguous"),  # missing max-subtraction
    ("tail", "ties", "offset"),  # variance of a constant row, argmax; alignment taken for granted
    ("pow2", "small", "contiguous"),  # wrong epsilon
    ("pow2_plus_1", "sparse", "transposed"),  # 0/0; off by one
    ("prime", "offset", "contiguous"),  # accumulation in half precision, cancellation
    ("tail", "extremes", "contiguous"),  # overflow, flush to zero
    ("ones", "normal", "strided"),  # broadcasting by accident
    ("all_maximum", "normal", "contiguous"),  # index arithmetic
    ("all_ones", "uniform", "contiguous"),  # K = 1, one row, one column
    ("equal", "normal", "transposed"),  # swapped axes hidden by strides
    ("maximum", "negative", "contiguous"),  # mask of the last tile at full length
    ("prime", "special", "contiguous"),
    ("maximum", "normal", "strided"),
    ("pow2_minus_1", "negative", "contiguous"),
    ("prime", "ties", "contiguous"),
    ("pow2_plus_1", "wide", "contiguous"),
    ("tail", "normal", "transposed"),
    ("equal", "special", "offset"),  # one kind of NaN or infinity alone
)


class Combination(NamedTuple):
    """The features of one case; `target` is the index of an input, or None for all inputs."""

    shape_class: str
    strategy: str
    layout: str
    target: int | None


Feature = tuple[str, str | int | None, str]  # kind of pair or single feature, and its members


class Designer:
    """Chooses combinations of features, case after case, until every pair has occurred."""

    def __init__(
        self,
        classes: tuple[str, ...],
        strategies: tuple[str, ...],
        layouts: tuple[str, ...],
        targets: tuple[int, ...],
    ) -> None:
        self.classes = classes
        self.strategies = tuple(s for s in REVEALING_STRATEGIES if s in strategies)
        self.strategies += tuple(s for s in strategies if s not in self.strategies)
        self.layouts = layouts
        self.targets = targets
        self._met: set[Feature] = set()
        self._times: Counter[tuple[str, str]] = Counter()

    def record(self, combination: Combination) -> None:
        self._take(*combination)

    def combinations(self) -> Iterator[Combination]:
        agenda = [
            (c, s, layout)
            for c, s, layout in AGENDA
            if c in self.classes and s in self.strategies and layout in self.layouts
        ]
        for entry in agenda:
            if any((kind, "", name) not in self._met for kind, name in _singles(*entry)):
                yield self._take(*entry)
        yield from self._uncovered_singles()
        for entry in agenda:
            if self._news(*entry):
                yield self._take(*entry)
        yield from self._uncovered_pairs()

    def _take(
        self, shape_class: str, strategy: str, layout: str, target: int | None = -1
    ) -> Combination:
        if target == -1:
            target = self._next_target(strategy)
        for kind, name in _singles(shape_class, strategy, layout):
            self._times[kind, name] += 1
            self._met.add((kind, "", name))
        self._met.update(_pairs(shape_class, strategy, layout))
        self._met.add(("target×strategy", target, strategy))
        return Combination(shape_class, strategy, layout, target)

    def _next_target(self, strategy: str) -> int | None:
        """Return the index of the input that the strategy applies to next; None for all inputs.
        Successive uses of a strategy alternate between all inputs and one input. For the strategy
        ``special``, which makes NaN and Inf, each single input comes before all inputs together: if
        all held NaN at once, an op that ignores the NaN of one input would pass."""
        if not self.targets:
            return None
        times = self._times["strategy", strategy]
        if strategy == "special":
            turn = times % (len(self.targets) + 1)
            return self.targets[turn] if turn < len(self.targets) else None
        return None if times % 2 == 0 else self.targets[times // 2 % len(self.targets)]

    def _news(self, shape_class: str, strategy: str, layout: str) -> int:
        """Return the number of pairs that a combination would cover for the first time."""
        return sum(pair not in self._met for pair in _pairs(shape_class, strategy, layout))

    def _uncovered_singles(self) -> Iterator[Combination]:
        for strategy in self.strategies:
            if ("strategy", "", strategy) not in self._met:
                yield self._take(*self._best(strategies=(strategy,)))
        for layout in self.layouts:
            if ("layout", "", layout) not in self._met:
                yield self._take(*self._best(layouts=(layout,)))
        for shape_class in self.classes:
            if ("class", "", shape_class) not in self._met:
                yield self._take(*self._best(classes=(shape_class,)))
        if "special" in self.strategies:
            for target in self.targets:
                if ("target×strategy", target, "special") not in self._met:
                    yield self._take(*self._best(strategies=("special",)), target)

    def _best(
        self,
        classes: Sequence[str] = (),
        strategies: Sequence[str] = (),
        layouts: Sequence[str] = (),
    ) -> tuple[str, str, str]:
        """Return the combination of the given names that covers the most new pairs. An empty
        argument allows all names. Of equally good combinations, the one whose names were used least
        is chosen, then the one that is likeliest to reveal a bug."""
        best = ("", "", "")
        best_rank = (-1, 0)
        for shape_class in classes or self.classes:
            for strategy in strategies or self.strategies:
                for layout in layouts or self.layouts:
                    members = _singles(shape_class, strategy, layout)
                    used = sum(self._times[member] for member in members)
                    rank = (self._news(shape_class, strategy, layout), -used)
                    if rank > best_rank:
                        best, best_rank = (shape_class, strategy, layout), rank
        return best

    def _uncovered_pairs(self) -> Iterator[Combination]:
        for shape_class, strategy in _by_rank(self.classes, self.strategies):
            if ("class×strategy", shape_class, strategy) not in self._met:
                yield self._take(*self._best((shape_class,), (strategy,)))
        for strategy, layout in _by_rank(self.strategies, self.layouts):
            if ("layout×strategy", layout, strategy) not in self._met:
                yield self._take(*self._best((), (strategy,), (layout,)))
        for shape_class, layout in _by_rank(self.classes, self.layouts):
            if ("class×layout", shape_class, layout) not in self._met:
                yield self._take(*self._best((shape_class,), (), (layout,)))
        for target in self.targets:
            for strategy in self.strategies:
                if ("target×strategy", target, strategy) not in self._met:
                    yield self._take(*self._best((), (strategy,)), target)


def _singles(shape_class: str, strategy: str, layout: str) -> tuple[tuple[str, str], ...]:
    return ("class", shape_class), ("strategy", strategy), ("layout", layout)


def _pairs(shape_class: str, strategy: str, layout: str) -> tuple[Feature, Feature, Feature]:
    return (
        ("class×strategy", shape_class, strategy),
        ("class×layout", shape_class, layout),
        ("layout×strategy", layout, strategy),
    )


def _by_rank(first: Sequence[str], second: Sequence[str]) -> list[tuple[str, str]]:
    """Return all pairs of an item of `first` and an item of `second`. They are sorted by the sum of
    the items' positions."""
    ranked = [(i + j, i, j) for i in range(len(first)) for j in range(len(second))]
    return [(first[i], second[j]) for _, i, j in sorted(ranked)]


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
    """Return the index of the case whose layout is best replaced by `layout`. An early case is
    preferred or, with `late`, a late one. The first case, which is the likeliest to reveal a bug,
    keeps its layout. The result is None if the layout suits no case."""
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
    """Count the inputs of a case on which a layout would have no effect. If the case has a target
    input with enough dims for the layout, only that input is considered. Otherwise, all inputs with
    enough dims are considered. Empty tensors are left out."""
    least = LEAST_RANKS[layout]
    target = combination.target
    alone = target is not None and len(sizes.shapes[target]) >= least
    concerned = [sizes.shapes[target]] if alone and target is not None else sizes.shapes
    able = [shape for shape in concerned if len(shape) >= least and 0 not in shape]
    shown = sum(effective_layout(layout, shape) == layout for shape in able)
    return len(able) - shown if shown else None


def _price(combination: Combination, others: Sequence[Combination]) -> int:
    """Return the loss of coverage if a case gave up its layout, from 0 (none) to 3. The loss is 2
    if the case's strategy is ``special`` or occurs in none of `others`. It is 1 more if the case's
    shape class occurs in none of `others`."""
    strategy = all(other.strategy != combination.strategy for other in others)
    shape_class = all(other.shape_class != combination.shape_class for other in others)
    # Each input has one case in which it alone holds NaN and Inf.
    return 2 * (strategy or combination.strategy == "special") + shape_class
