"""Plan the cases of an op: combinations of shapes, values and layouts, and their order.

The first `DESIGNED` cases are a designed set: combinations that reveal the known kinds of kernel
bugs, then every shape class, strategy and layout not yet used, then each input's ``special``
values. Some of these cases get layouts that need several dims, if their sizes allow it. After this
set come the pairs (class, strategy), (class, layout), (strategy, layout) and (strategy, input) not
yet met, and then seeded choices without end. The sequence depends on the schema, the strategies and
the layouts; only its random part and the data depend on the seed. The sequence does not depend on
the number of cases: each plan is the beginning of every longer plan.

In one case a strategy and a layout apply to all inputs. In the next they apply to one input, and
the other inputs are ``normal`` and contiguous.

Source of the pairs: pairwise test design (Cohen, Dalal, Fredman and Patton, "The AETG system: an
approach to testing based on combinatorial design", 1997).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from gpuemu_flow.cases.generate import Turns
from gpuemu_flow.cases.op_schema import OpSchema, TensorDef
from gpuemu_flow.cases.shapes import ShapePlanner, Sizes
from gpuemu_flow.cases.special_values import near_constants
from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.model.syntax import ExpressionError, compute
from gpuemu_flow.model.types import (
    ABSENT,
    CORE_STRATEGIES,
    DTYPES,
    LAYOUTS,
    LEAST_RANKS,
    RAGGED,
    SCALAR,
    STRATEGIES,
    STRATEGY_GROUPS,
    Bound,
    Case,
    InputSpec,
    canonical_dtype,
    effective_layout,
    strategies_of,
)
from gpuemu_flow.numerics.rng import SeededRng, derive_seed

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


DESIGNED = 24
ENDED = 2  # first cases with a range of an input in which its ends surely occur
ABSENT_EVERY = 3  # an optional input is None in one of so many cases
BLOCK = 8  # the designed set is ordered by size inside blocks of this many cases


def plan_cases(
    schema: OpSchema,
    *,
    seed: int,
    dtype: str,
    count: int,
    strategies: Sequence[str],
    layouts: Sequence[str],
) -> list[Case]:
    """Return the first `count` cases of an op. Raises UsageError: Unknown dtype, strategy or
    layout, or a negative count."""
    if count < 0:
        raise UsageError(Problem("negative-count", f"{count} cases cannot be made"))
    cases = iterate_cases(schema, seed=seed, dtype=dtype, strategies=strategies, layouts=layouts)
    return list(islice(cases, count))


def iterate_cases(
    schema: OpSchema, *, seed: int, dtype: str, strategies: Sequence[str], layouts: Sequence[str]
) -> Iterator[Case]:
    """Yield cases without end, beginning with those of `plan_cases`. Parameters and errors are
    those of `plan_cases`."""
    known_dtype = canonical_dtype(dtype)
    if known_dtype is None:
        hint = did_you_mean(dtype.strip().lower(), tuple(DTYPES))
        raise UsageError(Problem("unknown-dtype", f"there is no dtype {dtype!r}", hint))
    wanted = _selected("strategy", expand_strategies(strategies), STRATEGIES) or STRATEGIES
    laid_out = possible_layouts(schema, _selected("layout", layouts, LAYOUTS))
    return _cases(schema, seed, known_dtype, wanted, laid_out)


def possible_layouts(schema: OpSchema, layouts: Sequence[str]) -> tuple[str, ...]:
    """Return the layouts for which some input has enough dims; ``contiguous`` if none remain."""
    ranks = [len(tensor.dims) for tensor in schema.inputs]
    most = max((*ranks, *map(len, schema.fixed_shapes)), default=0)
    possible = dict.fromkeys(name for name in layouts if LEAST_RANKS.get(name, 0) <= most)
    return tuple(possible) or ("contiguous",)


def expand_strategies(names: Sequence[str]) -> tuple[str, ...]:
    """Return strategy names with the groups ``core`` and ``stress`` replaced by their members."""
    expanded = [s for name in names for s in STRATEGY_GROUPS.get(name, (name,))]
    return tuple(dict.fromkeys(expanded))


def _selected(what: str, names: Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            message = f"there is no {what} {name!r}"
            slug = "unknown-layout" if what == "layout" else "unknown-strategy"
            raise UsageError(Problem(slug, message, hint))
    return tuple(name for name in known if name in names)


def _cases(
    schema: OpSchema, seed: int, dtype: str, strategies: tuple[str, ...], layouts: tuple[str, ...]
) -> Iterator[Case]:
    companion = companion_strategy(strategies)
    absences = Absences()
    ended: Counter[tuple[Bound | None, ...]] = Counter()
    turns = Turns()
    for index, (combination, sizes) in enumerate(_shaped(schema, seed, strategies, layouts)):
        made, target = inputs_of(
            schema,
            dtype,
            combination,
            sizes,
            companion=companion,
            turn=index,
            absences=absences,
        )
        inputs = tuple(
            near_constants(
                _with_ends(tensor, spec, _range_of(spec, sizes, made), ended), schema.constants
            )
            for tensor, spec in zip(schema.inputs, made, strict=True)
        )
        yield Case(
            index=index,
            seed=derive_seed(seed, f"iter_{index}"),
            dtype=dtype,
            layout=combination.layout,
            strategy=combination.strategy,
            inputs=turns.of(inputs),
            target=target,
            shape_class=ShapePlanner.label(combination.shape_class),
            dims=sizes.dims,
        )


def _range_of(
    spec: InputSpec, sizes: Sizes, inputs: Sequence[InputSpec]
) -> tuple[Bound | None, ...]:
    """Return an input's name and the two ends of its range at given sizes. The name alone is
    returned if the input has no value rule, or if an end cannot be computed. An end may depend on
    the shapes of `inputs`, which are all inputs of the case."""
    bounds = (spec.rule.low, spec.rule.high) if spec.rule else ()
    shapes = {each.name: each.shape for each in inputs}
    try:
        known = [compute(b, dict(sizes.dims), shapes) if isinstance(b, str) else b for b in bounds]
    except ExpressionError:  # refused when the values are drawn
        known = []
    return (spec.name, *known)


def _with_ends(
    tensor: TensorDef,
    spec: InputSpec,
    found: tuple[Bound | None, ...],
    ended: Counter[tuple[Bound | None, ...]],
) -> InputSpec:
    """Return the input's spec, which may demand that both ends of the input's range occur. The
    first `ENDED` cases with the same range demand this. If the ends of a range depend on dims, they
    are demanded anew for each size. For example, an index into a table of one row can only be 0. A
    case with this index tests nothing about the last row of a table of 257 rows."""
    kind, rule = DTYPES[spec.dtype].kind, spec.rule
    if ended[found] >= ENDED or kind == "bool" or 0 in spec.shape:
        return spec
    if rule is not None and (rule.kind or rule.concerns_whole):
        return spec  # its strategies draw the ends
    bounds = (spec.low, spec.high, *((rule.low, rule.high) if rule else ()))
    bounded = any(bound is not None for bound in bounds)
    free = kind != "float" and tensor.strategy is None and not (rule and rule.values)
    if not (bounded or free):
        return spec
    ended[found] += 1
    return replace(spec, ends=ended[found])


def companion_strategy(strategies: tuple[str, ...]) -> str:
    """Return the strategy of the other inputs when a case singles out one input."""
    plain = [s for s in ("normal", *CORE_STRATEGIES) if s in strategies]
    return plain[0] if plain else "normal"


def _shaped(
    schema: OpSchema, seed: int, strategies: tuple[str, ...], layouts: tuple[str, ...]
) -> Iterator[tuple[Combination, Sizes]]:
    """Yield combinations with their sizes. Among the first `DESIGNED` combinations, each run of
    `BLOCK` combinations is sorted by size, smallest first."""
    shapes = ShapePlanner(schema)
    targets = _targets(schema)
    flat = tuple(name for name in layouts if name not in LEAST_RANKS) or layouts
    planned = islice(Designer(shapes.classes, strategies, flat, targets).combinations(), DESIGNED)
    first = [(c, shapes.next_sizes(c.shape_class)) for c in planned]
    first = with_row_layouts(first, [name for name in layouts if name not in flat], BLOCK)
    designer = Designer(shapes.classes, strategies, layouts, targets)
    for combination, _ in first:
        designer.record(combination)
    for start in range(0, DESIGNED, BLOCK):
        yield from sorted(
            first[start : start + BLOCK], key=lambda s: sum(map(math.prod, s[1].shapes))
        )
    emitted = len(first)
    for combination in designer.combinations():
        yield combination, shapes.next_sizes(combination.shape_class)
        emitted += 1
    yield from _random(shapes, designer, seed, emitted)


def _targets(schema: OpSchema) -> tuple[int, ...]:
    """Return the indices of the inputs that a case may single out; none for an op of one input. An
    input can be singled out if the schema sets no strategy, dtype or kind for it."""
    free = [
        i
        for i, t in enumerate(schema.inputs)
        if t.strategy is None and t.dtype is None and not (t.rule and t.rule.kind)
    ]
    return tuple(free) if len(schema.inputs) > 1 else ()


def _random(
    shapes: ShapePlanner, designer: Designer, seed: int, start: int
) -> Iterator[tuple[Combination, Sizes]]:
    """Yield combinations with their sizes, drawn from the seed, without end. The classes
    ``all_maximum``, ``all_ones`` and ``all_minimum`` are drawn less often than the others. The
    combinations are numbered from `start`. The seed and the number of a combination decide what is
    drawn for it."""
    classes = [c for c in shapes.classes if c not in ("all_maximum", "all_ones", "all_minimum")]
    classes = (classes or list(shapes.classes)) * 4 + list(shapes.classes)
    if shapes.has_ranges:
        classes += ["random"] * (len(classes) // 2)
    targets: list[int | None] = [None] * max(len(designer.targets), 1)
    targets += designer.targets
    index = start
    while True:
        rng = SeededRng(derive_seed(seed, f"plan_{index}"))
        combination = Combination(
            rng.choice(classes),
            rng.choice(designer.strategies),
            rng.choice(designer.layouts),
            rng.choice(targets),
        )
        yield combination, shapes.next_sizes(combination.shape_class, rng.gen_u64())
        index += 1


class Absences:
    """Chooses the cases in which optional inputs are None, without losing a strategy or layout. An
    input is due to be None in about one of `ABSENT_EVERY` cases. If the case would show a strategy
    or layout of the input for the first time, the input is None in a later case instead. In one of
    the very first cases the input is always None, so that even short runs try None."""

    def __init__(self) -> None:
        self._met: set[tuple[str, str, str]] = set()
        self._owed: Counter[str] = Counter()

    def takes(self, spec: InputSpec, turn: int, *, alone: bool = False) -> bool:
        """Tell whether an optional input is None in this case, and record the decision."""
        self._owed[spec.name] += _is_turn_of_none(spec, turn)
        shown = {(spec.name, "strategy", spec.strategy), (spec.name, "layout", spec.layout)}
        new = alone or not shown <= self._met
        if not self._owed[spec.name] or (new and turn >= ABSENT_EVERY):
            self._met |= shown
            return False
        self._owed[spec.name] -= 1
        return True


def _is_turn_of_none(spec: InputSpec, turn: int) -> bool:
    return _turn_of(turn, ~spec.position, ABSENT_EVERY) == 0


def inputs_of(
    schema: OpSchema,
    dtype: str,
    combination: Combination,
    sizes: Sizes,
    *,
    companion: str,
    turn: int,
    absences: Absences | None = None,
) -> tuple[tuple[InputSpec, ...], str | None]:
    """Return the inputs of a case, and the name of the input that it targets (None = all). If the
    targeted input has too few dims for the layout, the other inputs get the layout, too."""
    strategy, layout, target = combination.strategy, combination.layout, combination.target
    if strategy == companion and layout == "contiguous":
        target = None  # the other inputs would be drawn in the same way
    everywhere = target is None or len(sizes.shapes[target]) < LEAST_RANKS.get(layout, 0)
    ragged = any(tensor.rule and tensor.rule.kind in RAGGED for tensor in schema.inputs)
    inputs = []
    for position, (tensor, shape) in enumerate(zip(schema.inputs, sizes.shapes, strict=True)):
        meant = target is None or position == target
        spec = InputSpec(
            name=tensor.name,
            shape=shape,
            dtype=tensor.dtype or dtype,
            layout=layout if meant or everywhere else "contiguous",
            strategy=tensor.strategy or (strategy if meant else companion),
            position=position,
            low=tensor.low,
            high=tensor.high,
            rule=tensor.rule,
        )
        if tensor.rule is not None:
            spec = _with_rule(spec, tensor, turn, even=ragged)
        if spec.rule is not None and spec.rule.optional:
            none = (
                absences.takes(spec, turn, alone=position == target)
                if absences is not None
                else _is_turn_of_none(spec, turn)
            )
            if none:
                spec = replace(spec, shape=(0,) * len(shape), strategy=ABSENT, layout="contiguous")
        inputs.append(spec)
    return tuple(inputs), None if target is None else schema.inputs[target].name


def _turn_of(turn: int, position: int, count: int) -> int:
    """Choose a number from 0 to ``count - 1`` for one input of one case. The first `count` cases
    choose each number once. In later cases the choice is pseudo-random, so that the choices for
    several inputs are not correlated."""
    if turn < count:
        return (turn + position) % count
    mixed = (turn * 0x9E3779B97F4A7C15 + position * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    mixed = (mixed ^ mixed >> 31) * 0x94D049BB133111EB & (2**64 - 1)
    return (mixed >> 33) % count


def _even_turn_of(turn: int, position: int, count: int) -> int:
    """Choose a number from 0 to ``count - 1`` for an input, each number equally often. The cases
    are divided into blocks of `count` successive cases. Each block chooses each number once, in an
    order of its own."""
    if turn < count:
        return (turn + position) % count
    again, place = divmod(turn, count)
    order = list(range(count))
    SeededRng(derive_seed(again, f"turns_{position}")).shuffle(order)
    return order[place]


def _with_rule(spec: InputSpec, tensor: TensorDef, turn: int, *, even: bool) -> InputSpec:
    """Return the input's spec with a strategy and a layout that its value rule allows. Each kind of
    rule, such as ``offsets``, has strategies of its own. The number of the case chooses one of
    them, unless the schema sets a strategy for the input. A rule about the whole tensor excludes
    the layout ``expanded``, which repeats values."""
    rule = spec.rule
    if rule is None:
        return spec
    if rule.kind and tensor.strategy is None:
        patterns = tuple(name for name in strategies_of(rule) if name != ABSENT)
        choose = _even_turn_of if even and rule.kind == SCALAR else _turn_of
        spec = replace(spec, strategy=patterns[choose(turn, spec.position, len(patterns))])
    if spec.layout == "expanded" and rule.concerns_whole:
        spec = replace(spec, layout="contiguous")
    return spec


SAMPLED = 8  # cases among which `sample_cases` chooses


def op_samples(
    schema: OpSchema,
    *,
    seed: int,
    dtype: str,
    strategies: Sequence[str],
    layouts: Sequence[str],
) -> list[Case]:
    """Return the cases from which an op's properties, such as exactness, are found."""
    cases = plan_cases(
        schema, seed=seed, dtype=dtype, count=SAMPLED, strategies=strategies, layouts=layouts
    )
    return sample_cases(cases)


def sample_cases(cases: Sequence[Case]) -> list[Case]:
    """Select cases whose shapes show an op's properties: the four largest of the first eight cases.
    Tiny shapes tell little (a softmax over one element is exact). A longer plan gives the same
    samples, so that it does not change the verdict on any case."""
    return sorted(cases[:SAMPLED], key=lambda case: (-case.numel, case.index))[:4]
