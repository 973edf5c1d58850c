"""The plan: a designed set of 24 cases, its prefixes, and what follows it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.cases.op_schema import (
    BUILTIN_SCHEMAS,
    Dim,
    OpSchema,
    TensorDef,
    default_schema,
    plain_shapes_schema,
)
from gpuemu_flow.cases.plan import plan_cases, possible_layouts
from gpuemu_flow.cases.shapes import ShapePlanner
from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.model.types import LAYOUTS, STRATEGIES, Case, ValueRule, effective_layout
from gpuemu_flow.numerics.rng import derive_seed

FLAT_LAYOUTS = ("contiguous", "strided", "transposed", "offset")
DEFAULT_LAYOUTS = (*FLAT_LAYOUTS, "padded", "permuted")


def plan(
    schema: OpSchema | str = "matmul",
    count: int = 24,
    *,
    seed: int = 0,
    dtype: str = "float32",
    strategies: Sequence[str] = ("core", "stress"),
    layouts: Sequence[str] = DEFAULT_LAYOUTS,
) -> list[Case]:
    found = BUILTIN_SCHEMAS[schema] if isinstance(schema, str) else schema
    return plan_cases(
        found, seed=seed, dtype=dtype, count=count, strategies=strategies, layouts=layouts
    )


@pytest.mark.parametrize("layouts", [DEFAULT_LAYOUTS, LAYOUTS])
def test_24_cases_cover_every_class_strategy_layout_and_special_input(layouts: tuple[str, ...]):
    for name in sorted(BUILTIN_SCHEMAS):
        cases = plan(name, layouts=layouts)
        assert {c.shape_class for c in cases} == set(ShapePlanner(BUILTIN_SCHEMAS[name]).classes)
        assert {c.strategy for c in cases} == set(STRATEGIES)
        assert {c.layout for c in cases} == set(possible_layouts(BUILTIN_SCHEMAS[name], layouts))
        names = [t.name for t in BUILTIN_SCHEMAS[name].inputs]
        if len(names) > 1:
            assert {c.target for c in cases if c.strategy == "special"} >= set(names)


@pytest.mark.parametrize("schema", ["attention", "elementwise"])
def test_a_longer_plan_begins_with_the_shorter_one(schema: str):
    longest = plan(schema, 400, seed=7)
    for count in (0, 1, 5, 8, 23, 24, 25, 100, 399):
        assert plan(schema, count, seed=7) == longest[:count]


def test_seeds_of_cases_are_gpuemus():
    cases = plan(count=300, seed=42)
    assert [c.seed for c in cases] == [derive_seed(42, f"iter_{n}") for n in range(300)]
    assert [c.index for c in cases] == list(range(300))


def test_only_seeds_and_random_choices_depend_on_the_master_seed():
    first, second = plan(count=400, seed=1), plan(count=400, seed=2)
    shapes = [[(c.shape_class, c.strategy, c.dims) for c in cases] for cases in (first, second)]
    assert shapes[0][:24] == shapes[1][:24]
    assert shapes[0] != shapes[1]


def test_dtypes_differ_in_nothing_but_the_dtype():
    for a, b in zip(plan(dtype="float32"), plan(dtype="f16"), strict=True):
        assert {i.dtype for i in a.inputs} == {"float32"}
        assert {i.dtype for i in b.inputs} == {"float16"}
        assert (a.seed, a.shape_class, a.dims) == (b.seed, b.shape_class, b.dims)


def test_the_order_of_strategies_and_layouts_does_not_matter():
    reordered = plan(count=300, strategies=STRATEGIES[::-1], layouts=DEFAULT_LAYOUTS[::-1])
    assert reordered == plan(count=300)


def test_likely_revealers_come_first():
    first = plan(default_schema(("x",)), 8)
    found = {(c.shape_class, c.strategy) for c in first}
    assert ("tail", "negative") in found, "a tail mask of 0 in a max"
    assert any(c.strategy == "normal" and c.layout != "contiguous" for c in first)
    assert any(c.shape_class == "equal" for c in first), "swapped axes"
    assert any(c.shape_class == "maximum" for c in first), "more than one tile"
    assert any(c.strategy == "special" for c in first), "NaN and Inf"


def test_smallest_first_inside_each_block_of_the_designed_set():
    cases = plan("elementwise")
    for start in (0, 8, 16):
        numels = [c.numel for c in cases[start : start + 8]]
        assert numels == sorted(numels)
    assert cases[0].numel < 1000


def test_few_cases_of_the_default_run_are_large():
    for name in sorted(BUILTIN_SCHEMAS):
        largest = [max(_numel(i.shape) for i in c.inputs) for c in plan(name)]
        assert sum(n > 2**16 for n in largest) <= 1, name
        assert sum(n > 2**14 for n in largest) <= 8, name


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def test_a_strategy_applies_to_all_inputs_and_then_to_one():
    cases = plan("attention", 300)
    first_special = next(c for c in cases if c.strategy == "special")
    assert first_special.target is not None, "NaN in all inputs hides an op that swallows one"
    plain = [c for c in cases[:24] if c.strategy != "special"]
    assert len({c.strategy for c in plain if c.target is not None}) >= 4
    for strategy in STRATEGIES:
        targets = {c.target for c in cases if c.strategy == strategy}
        if strategy != "normal":
            assert targets == {None, "q", "k", "v"}, strategy
    for case in cases:
        for spec in case.inputs:
            meant = case.target in (None, spec.name)
            assert spec.strategy == (case.strategy if meant else "normal")
            assert spec.layout == (case.layout if meant else "contiguous")


def test_the_layouts_of_an_op_are_those_that_its_inputs_have_dims_for():
    vector = OpSchema((Dim("N", (), 1, 99),), (TensorDef("x", ("N",)),))
    assert plan(vector, 200) == plan(vector, 200, layouts=FLAT_LAYOUTS)
    assert {c.layout for c in plan("matmul", 300)} == {*FLAT_LAYOUTS, "padded"}
    assert {c.layout for c in plan("norm", 300)} == set(DEFAULT_LAYOUTS)
    shapes = plain_shapes_schema(("x",), [], [], [], [[7], [2, 3, 4]])
    assert {c.layout for c in plan(shapes, 300)} == set(DEFAULT_LAYOUTS)
    assert {c.layout for c in plan(vector, layouts=["padded"])} == {"contiguous"}


@pytest.mark.parametrize("name", sorted(BUILTIN_SCHEMAS))
def test_layouts_of_rows_change_no_value_of_the_designed_set(name: str):
    flat, both = plan(name, layouts=FLAT_LAYOUTS), plan(name)
    assert [_without_layouts(c) for c in flat] == [_without_layouts(c) for c in both]
    for layout in possible_layouts(BUILTIN_SCHEMAS[name], ("padded", "permuted")):
        relaid = [n for n, c in enumerate(both) if c.layout == layout]
        assert len(relaid) == 2
        assert {flat[n].layout for n in relaid} == {"contiguous"}
        for n in relaid:
            shapes = [i.shape for i in both[n].inputs if i.layout == layout]
            assert any(effective_layout(layout, shape) == layout for shape in shapes)


def test_a_layout_of_rows_comes_early_and_leaves_the_strategy_in_c_order():
    for name in sorted(set(BUILTIN_SCHEMAS) - {"conv2d"}):
        cases = plan(name)
        assert "padded" in {c.layout for c in cases[:8]}, name
        for layout in ("padded", "permuted"):
            for case in cases:
                plain = [c for c in cases if c.layout in ("contiguous", "offset")]
                relaid = case.layout == layout and case.strategy != "special"
                assert not relaid or case.strategy in {c.strategy for c in plain}


def test_where_the_target_is_a_vector_the_rows_of_the_others_have_the_layout():
    cases = [c for c in plan("norm", 300) if c.layout == "padded" and c.target == "bias"]
    assert cases
    for case in cases:
        assert [i.layout for i in case.inputs] == ["padded"] * 3
        assert case.inputs[0].strategy == "normal"


def _without_layouts(case: Case) -> Case:
    inputs = tuple(replace(spec, layout="contiguous") for spec in case.inputs)
    return replace(case, layout="contiguous", inputs=inputs)


def test_all_pairs_are_met_before_random_choices():
    cases = plan("matmul", 250)
    classes = set(ShapePlanner(BUILTIN_SCHEMAS["matmul"]).classes)
    pairs = {(c.shape_class, c.strategy) for c in cases}
    assert pairs >= {(k, s) for k in classes for s in STRATEGIES}
    assert {(c.layout, c.strategy) for c in cases} >= {
        (layout, s) for layout in (*FLAT_LAYOUTS, "padded") for s in STRATEGIES
    }
    assert {(c.layout, c.shape_class) for c in cases} >= {
        (layout, k) for layout in (*FLAT_LAYOUTS, "padded") for k in classes
    }


def test_the_sequence_goes_on_with_new_sizes():
    cases = plan(default_schema(("x",)), 3000)
    assert len({c.inputs[0].shape for c in cases[1000:]}) > 500
    assert "random" in {c.shape_class for c in cases}
    assert sum(c.shape_class == "all_maximum" for c in cases) < 150


def test_an_input_keeps_its_own_dtype_strategy_and_range():
    inputs = (
        TensorDef("table", ("V", "D")),
        TensorDef("index", ("N",), "int32", 0, 11),
        TensorDef("scale", ("D",), None, 0.5, 2.0, "uniform"),
    )
    schema = OpSchema((Dim("V", (11,)), Dim("D", (4, 5)), Dim("N", (), 1, 99)), inputs)
    for case in plan(schema, 200, dtype="float16"):
        table, index, scale = case.inputs
        assert (table.dtype, index.dtype, scale.dtype) == ("float16", "int32", "float16")
        assert (index.low, index.high) == (0, 11)
        assert (scale.low, scale.high, scale.strategy) == (0.5, 2.0, "uniform")
        assert [i.position for i in case.inputs] == [0, 1, 2]
        assert case.target in (None, "table"), "no case is about an input with a will of its own"


def test_only_what_was_asked_for():
    cases = plan("matmul", 200, strategies=["uniform"], layouts=["contiguous"])
    assert {i.strategy for c in cases for i in c.inputs} == {"uniform"}
    assert {i.layout for c in cases for i in c.inputs} == {"contiguous"}
    assert {c.target for c in cases} == {None}
    without_normal = plan("matmul", 100, strategies=["uniform", "special"])
    assert {i.strategy for c in without_normal for i in c.inputs} == {"uniform", "special"}


@pytest.mark.parametrize(
    "layouts", [["offset"], [], ["expanded", "strided"], ["padded"], ["permuted", "offset"]]
)
def test_any_selection_is_covered(layouts: list[str]):
    for strategies in [["core"], ["stress"], ["special"], [], ["wide", "ties"]]:
        cases = plan("norm", 24, strategies=strategies, layouts=layouts)
        wanted = {s for name in strategies or ["core", "stress"] for s in _expanded(name)}
        assert {c.strategy for c in cases} == wanted
        assert {c.layout for c in cases} == set(layouts or ["contiguous"])
        assert {c.shape_class for c in cases} >= set(ShapePlanner(BUILTIN_SCHEMAS["norm"]).classes)


def _expanded(name: str) -> tuple[str, ...]:
    groups = {"core": STRATEGIES[:7], "stress": STRATEGIES[7:]}
    return groups.get(name, (name,))


def test_every_listed_candidate_is_met_within_24_cases():
    candidates = {"M": (1, 2, 7, 31, 128, 257), "K": (1, 3, 16, 127, 256), "N": (1, 2, 15, 64, 255)}
    schema = OpSchema(
        tuple(Dim(name, sizes) for name, sizes in candidates.items()),
        BUILTIN_SCHEMAS["matmul"].inputs,
    )
    seen = {(name, size) for case in plan(schema) for name, size in case.dims}
    assert seen == {(name, size) for name, sizes in candidates.items() for size in sizes}


def test_plain_shape_lists_mean_exactly_those_shapes():
    schema = plain_shapes_schema(("x", "y"), [1, 2, 4], [64, 128], [], [[1], [7]])
    cases = plan(schema)
    shapes = {i.shape for c in cases for i in c.inputs}
    assert shapes <= {(b, s) for b in (1, 2, 4) for s in (64, 128)} | {(1,), (7,)}
    assert {size for shape in shapes for size in shape} == {1, 2, 4, 64, 128, 7}
    assert all(len({i.shape for i in c.inputs}) == 1 for c in cases)
    assert {c.shape_class for c in cases if c.inputs[0].shape in ((1,), (7,))} == {"fixed"}


def test_scalars_and_empty_tensors_can_be_planned():
    scalar = OpSchema((), (TensorDef("x", ()),))
    assert {c.inputs[0].shape for c in plan(scalar, 40)} == {()}
    empty = OpSchema((Dim("N", (0,)),), (TensorDef("x", ("N", 3)),))
    assert {c.inputs[0].shape for c in plan(empty, 40)} == {(0, 3)}


@pytest.mark.parametrize(
    ("change", "slug"),
    [
        ({"count": -1}, "negative-count"),
        ({"strategies": ["gaussian"]}, "unknown-strategy"),
        ({"layouts": ["diagonal"]}, "unknown-layout"),
        ({"dtype": "float99"}, "unknown-dtype"),
    ],
)
def test_bad_arguments_are_usage_errors(change: dict[str, object], slug: str):
    with pytest.raises(UsageError) as caught:
        plan(**change)  # type: ignore[arg-type]
    assert caught.value.slug == slug


NAN_AND_INFINITIES = {"nan", "inf", "-inf"}


def kinds_of(values: np.ndarray) -> set[str]:
    found = values.astype(np.float64)
    return {str(value) for value in found[~np.isfinite(found)].tolist()}


def met_by_input(cases: Sequence[Case]) -> dict[str, set[str]]:
    met: dict[str, set[str]] = {}
    for case in cases:
        for name, values in materialise(case).items():
            met[name] = met.get(name, set()) | kinds_of(values)
    return met


FEW_ROWS = {
    "a vector": ({"N": (1, 200)}, {"x": ("N",)}),
    "two vectors": ({"N": (1, 200)}, {"x": ("N",), "y": ("N",)}),
    "few rows": ({"M": (1, 4), "N": (1, 200)}, {"x": ("M", "N")}),
    "seven rows": ({"M": (7, 7), "N": (1, 40)}, {"x": ("M", "N")}),
    "a matrix and a vector": ({"M": (1, 40), "N": (1, 40)}, {"x": ("M", "N"), "w": ("N",)}),
}


@pytest.mark.parametrize("name", FEW_ROWS)
def test_each_float_input_meets_nan_and_both_infinities_within_24_cases(name: str):
    dims, inputs = FEW_ROWS[name]
    schema = OpSchema(
        dims=tuple(Dim(n, min=low, max=high) for n, (low, high) in dims.items()),
        inputs=tuple(TensorDef(n, axes) for n, axes in inputs.items()),
    )
    for seed in range(25):
        met = met_by_input(plan(schema, seed=seed))
        assert all(found == NAN_AND_INFINITIES for found in met.values()), (seed, met)


def test_later_vectors_hold_one_kind_alone():
    """NaN beside an infinity would hide it in a sum."""
    schema = OpSchema(dims=(Dim("N", min=3, max=200),), inputs=(TensorDef("x", ("N",)),))
    _, *later = [case for case in plan(schema, 400) if case.strategy == "special"]
    found = [kinds_of(materialise(case)["x"]) for case in later]
    assert set().union(*(kinds for kinds in found if len(kinds) == 1)) == NAN_AND_INFINITIES


def test_values_that_the_schema_excludes_are_never_written():
    for low, high, nonfinite, expected in [
        (None, None, False, set()),
        (0.0, None, None, {"nan", "inf"}),
        (None, 0.0, None, {"nan", "-inf"}),
        (0.0, 1.0, None, set()),
        (0.0, 1.0, True, NAN_AND_INFINITIES),
    ]:
        rule = None if nonfinite is None else ValueRule(nonfinite=nonfinite)
        tensor = TensorDef("x", ("N",), low=low, high=high, rule=rule)
        schema = OpSchema(dims=(Dim("N", min=1, max=200),), inputs=(tensor,))
        for seed in range(5):
            assert met_by_input(plan(schema, seed=seed))["x"] == expected


def test_the_first_special_cases_of_an_input_show_its_kinds_in_turn():
    schema = OpSchema(dims=(Dim("N", min=1, max=200),), inputs=(TensorDef("x", ("N",)),))
    cases = [case for case in plan(schema, 100) if case.strategy == "special"]
    ends = [case.to_text().rpartition(":")[2] for case in cases]
    assert ends[:4] == ["turn1", "turn2", "turn3", "turn4"]
    assert not any("turn" in end for end in ends[4:])
