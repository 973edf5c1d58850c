"""New cases for an experiment: drawn at random, or known cases with one change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpuemu_flow.cases.design import Combination
from gpuemu_flow.cases.generated_values import unmade
from gpuemu_flow.cases.op_schema import Dim, OpSchema
from gpuemu_flow.cases.plan import companion_strategy, inputs_of, possible_layouts
from gpuemu_flow.cases.shapes import Sizes, listed_sizes
from gpuemu_flow.cases.sizes_allowed import allowed_sizes
from gpuemu_flow.numerics.rng import SeededRng, derive_seed
from gpuemu_flow.types import Case, InputSpec, Shape
from gpuemu_flow.value_rules import ABSENT, ValueRule, strategies_of

CHANGED = 0.5
"""Share of the new cases that are known cases with one change."""

TILES = (8, 16, 32, 64, 128, 256, 512)
TRIES = 12
REFUSED = 1 << 62
TARGETED = "experiment"
"""The shape class of the new cases."""


class Variants:
    """Draws new cases of one op and dtype; the same seed gives the same cases.

    Parameters
    ----------
    schema : OpSchema
    dtype : str
    strategies, layouts : sequence of str
        Strategies and layouts of the op.
    seed : int
    most_elements : int
        Largest permitted number of elements of a tensor.
    """

    def __init__(
        self,
        schema: OpSchema,
        dtype: str,
        strategies: Sequence[str],
        layouts: Sequence[str],
        seed: int,
        most_elements: int,
    ) -> None:
        self._schema = schema
        self._dtype = dtype
        self._strategies = tuple(strategies)
        self._layouts = possible_layouts(schema, layouts)
        self._companion = companion_strategy(self._strategies)
        self._seed = seed
        self._most = most_elements
        self._drawn = 0
        self._fallback = allowed_sizes(schema) or {}

    def draw(self, known: Sequence[Case]) -> Iterator[Case]:
        """Yield new cases without end; about half of them are known cases with one change."""
        known = [unmade(case) for case in known]
        while True:
            number = self._drawn
            self._drawn += 1
            seed = derive_seed(self._seed, f"cause_{number}")
            rng = SeededRng(seed).derive("choice")
            if known and rng.gen_bool(CHANGED):
                yield self._changed(rng.choice(list(known)), rng, seed)
            else:
                yield self._new(rng, seed)

    def like(self, known: Sequence[Case]) -> Iterator[Case]:
        """Yield cases without end, most of which are like the known ones.

        In each round, every known case is yielded with new sizes and data, followed by one case of
        `draw`.
        """
        known = [unmade(case) for case in known]
        others = self.draw(known)
        while True:
            for case in known:
                number = self._drawn
                self._drawn += 1
                seed = derive_seed(self._seed, f"cause_{number}")
                sizes = self._sizes(SeededRng(seed).derive("choice"))
                specs = tuple(
                    _resized(spec, shape)
                    for spec, shape in zip(case.inputs, sizes.shapes, strict=True)
                )
                yield replace(
                    case, inputs=specs, dims=sizes.dims, seed=seed, index=0, shape_class=TARGETED
                )
            yield next(others)

    def resized(self, case: Case, name: str, size: int) -> Case | None:
        """Return a known case with another size of one dim; None where this is not allowed."""
        known = dict(case.dims)
        sizes = {dim.name: known[dim.name] for dim in self._schema.dims if dim.name in known}
        dim = next((dim for dim in self._schema.dims if dim.name == name), None)
        if dim is None or name not in sizes or not dim.smallest <= size <= dim.largest:
            return None
        listed = listed_sizes(dim)
        if size % dim.multiple_of or (listed and size not in listed):
            return None
        sizes[name] = size
        if self._largest(sizes) > self._most:
            return None
        seed = derive_seed(case.seed, f"resized_{name}_{size}")
        return self._with_sizes(unmade(case), sizes, seed)

    def _with_sizes(self, case: Case, sizes: Mapping[str, int], seed: int) -> Case:
        shaped = self._shaped(sizes)
        specs = tuple(
            _resized(spec, shape) for spec, shape in zip(case.inputs, shaped.shapes, strict=True)
        )
        return replace(
            case, inputs=specs, dims=shaped.dims, seed=seed, index=0, shape_class=TARGETED
        )

    def _new(self, rng: SeededRng, seed: int) -> Case:
        inputs = self._schema.inputs
        plain = rng.gen_bool(0.3)
        strategy = self._companion if plain else rng.choice(list(self._strategies))
        layout = "contiguous" if rng.gen_bool(0.5) else rng.choice(list(self._layouts))
        target = rng.gen_range(0, len(inputs)) if len(inputs) > 1 and rng.gen_bool(0.5) else None
        combination = Combination(TARGETED, strategy, layout, target)
        return self._case(combination, self._sizes(rng), seed)

    def _case(self, combination: Combination, sizes: Sizes, seed: int) -> Case:
        inputs, target = inputs_of(
            self._schema,
            self._dtype,
            combination,
            sizes,
            companion=self._companion,
            turn=self._drawn - 1,
        )
        return Case(
            index=0,
            seed=seed,
            dtype=self._dtype,
            layout=combination.layout,
            strategy=combination.strategy,
            inputs=inputs,
            target=target,
            shape_class=TARGETED,
            dims=sizes.dims,
        )

    def _changed(self, case: Case, rng: SeededRng, seed: int) -> Case:
        """Return a known case with one change: an input's values or layout, or a dim's size."""
        what = rng.choice(["values", "layout", "size", "size"])
        if what == "size" and len(self._schema.dims) and dict(case.dims):
            known = dict(case.dims)
            sizes = {dim.name: known[dim.name] for dim in self._schema.dims if dim.name in known}
            dim = rng.choice(list(self._schema.dims))
            sizes[dim.name] = self._size(dim, rng, list(sizes.values()))
            if self._largest(sizes) <= self._most:
                return self._with_sizes(case, sizes, seed)
        place = rng.gen_range(0, len(case.inputs))
        spec = case.inputs[place]
        if spec.strategy == ABSENT:
            pass
        elif what == "layout":
            layout = rng.choice(list(self._layouts))
            whole = spec.rule is not None and spec.rule.concerns_whole
            kept = layout == "expanded" and whole
            spec = spec if kept else replace(spec, layout=layout)
        elif spec.rule is not None and spec.rule.kind:
            spec = replace(spec, strategy=rng.choice(_present(spec.rule)))
        elif self._schema.inputs[place].strategy is None:
            plain = rng.gen_bool(0.4)
            chosen = self._companion if plain else rng.choice(list(self._strategies))
            spec = replace(spec, strategy=chosen)
        inputs = (*case.inputs[:place], spec, *case.inputs[place + 1 :])
        return replace(case, inputs=inputs, target=None, seed=seed, index=0, shape_class=TARGETED)

    def _sizes(self, rng: SeededRng) -> Sizes:
        if not self._schema.dims:
            shape = rng.choice(list(self._schema.fixed_shapes))
            return Sizes((), tuple(shape for _ in self._schema.inputs))
        sizes: dict[str, int] = {}
        for _ in range(TRIES):
            sizes = {}
            for dim in self._schema.dims:
                sizes[dim.name] = self._size(dim, rng, list(sizes.values()))
            if self._largest(sizes) <= self._most:
                return self._shaped(sizes)
        # One dim keeps its size, the others are as small as they may be.
        kept = rng.choice(list(sizes))
        for dim in self._schema.dims:
            if dim.name != kept or self._largest(sizes) > self._most:
                sizes[dim.name] = max(dim.smallest, min(2, dim.largest))
        return self._shaped(sizes if self._schema.allows(sizes) else self._fallback)

    def _shaped(self, sizes: Mapping[str, int]) -> Sizes:
        named = self._schema.all_sizes(sizes)
        return Sizes(tuple(named.items()), self._schema.shapes(named))

    def _largest(self, sizes: Mapping[str, int]) -> int:
        """Return the element count of the largest tensor; `REFUSED` for forbidden sizes."""
        if not self._schema.allows(sizes):
            return REFUSED
        sizes = self._schema.all_sizes(sizes)
        largest = 0
        for tensor in (*self._schema.inputs, *self._schema.outputs):
            count = 1
            for axis in tensor.dims:
                count *= sizes[axis] if isinstance(axis, str) else axis
            largest = max(largest, count)
        return largest

    def _size(self, dim: Dim, rng: SeededRng, others: Sequence[int]) -> int:
        """Draw a size above 0 of a dim: near a tile's border, any size, or one of `others`.

        `others` are sizes of other dims.
        """
        listed = [n for n in listed_sizes(dim) if n > 0]
        if listed:
            same = [n for n in others if n in listed]
            return rng.choice(same) if same and rng.gen_bool(0.25) else rng.choice(listed)
        kind = rng.gen_range(0, 8)
        if kind == 0 and others:
            size = rng.choice(list(others))
        elif kind <= 2:
            size = rng.choice(list(TILES)) * rng.gen_range(1, 4) + rng.gen_range(-1, 2)
        elif kind == 3:
            size = rng.choice(list(TILES)) * rng.gen_range(1, 5)
        elif kind == 4:
            size = rng.gen_range(1, 9)
        else:
            bits = rng.gen_range(1, max(dim.largest.bit_length(), 2) + 1)
            size = rng.gen_range(1 << (bits - 1), 1 << bits)
        step = dim.multiple_of
        size = max(1, round(size / step)) * step
        return min(max(size, dim.smallest, step), dim.largest)


def _present(rule: ValueRule) -> list[str]:
    return [name for name in strategies_of(rule) if name != ABSENT]


def _resized(spec: InputSpec, shape: Shape) -> InputSpec:
    """Return the input's spec with another shape; if the input is None, return it unchanged."""
    return spec if spec.strategy == ABSENT else replace(spec, shape=shape)
