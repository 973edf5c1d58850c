"""Properties of schemas, plans and tensors over generated schemas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.cases.op_schema import WARNING_SLUGS, Dim, OpSchema, TensorDef
from gpuemu_flow.cases.plan import plan_cases
from gpuemu_flow.cases.schema import parse_schema
from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.types import DTYPES, LAYOUTS, STRATEGIES, Case, effective_layout
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.numerics.layouts import describe, lay_out_guarded

DIM_NAMES = ("A", "B", "C")


@st.composite
def dims(draw: st.DrawFn, name: str) -> Dim:
    if draw(st.booleans()):
        sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=5, unique=True))
        return Dim(name, tuple(sizes))
    step = draw(st.sampled_from([1, 1, 2, 8]))
    low = draw(st.integers(0, 30))
    high = draw(st.integers(low + step, low + step + 200))
    return Dim(name, (), low, high, step)


@st.composite
def schemas(draw: st.DrawFn) -> OpSchema:
    names = DIM_NAMES[: draw(st.integers(1, 3))]
    axis = st.sampled_from([*names, *names, 1, 3])
    axes = draw(st.lists(st.lists(axis, max_size=3), min_size=1, max_size=3))
    inputs = tuple(TensorDef(f"x{i}", tuple(a)) for i, a in enumerate(axes))
    fixed = draw(st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=2))
    used = {a for tensor in inputs for a in tensor.dims}
    kept = tuple(draw(dims(name)) for name in names if name in used)
    return OpSchema(kept, inputs, (), tuple(tuple(shape) for shape in fixed))


selections = {
    "strategies": st.lists(st.sampled_from([*STRATEGIES, "core", "stress"]), max_size=4),
    "layouts": st.lists(st.sampled_from(LAYOUTS), max_size=3),
}


def cases_of(schema: OpSchema, count: int, seed: int, strategies: list, layouts: list) -> list:
    return plan_cases(
        schema, seed=seed, dtype="float32", count=count, strategies=strategies, layouts=layouts
    )


@settings(max_examples=150, deadline=None)
@given(schema=schemas(), seed=st.integers(0, 2**64 - 1), count=st.integers(0, 60), **selections)
def test_a_plan_is_a_prefix_of_every_longer_one(
    schema: OpSchema, seed: int, count: int, strategies: list, layouts: list
):
    longer = cases_of(schema, count + 30, seed, strategies, layouts)
    assert cases_of(schema, count, seed, strategies, layouts) == longer[:count]
    assert len(longer) == count + 30


@settings(max_examples=150, deadline=None)
@given(schema=schemas(), seed=st.integers(0, 2**64 - 1), **selections)
def test_every_size_is_one_that_the_schema_allows(
    schema: OpSchema, seed: int, strategies: list, layouts: list
):
    by_name = {dim.name: dim for dim in schema.dims}
    for case in cases_of(schema, 120, seed, strategies, layouts):
        if case.shape_class == "fixed":
            assert all(i.shape in schema.fixed_shapes for i in case.inputs)
            continue
        sizes = dict(case.dims)
        for name, size in sizes.items():
            dim = by_name[name]
            if dim.candidates:
                assert size in dim.candidates
            else:
                assert dim.min <= size <= dim.max
                assert size % dim.multiple_of == 0
        for tensor, spec in zip(schema.inputs, case.inputs, strict=True):
            assert spec.shape == tuple(sizes.get(a, a) for a in tensor.dims)


@settings(max_examples=60, deadline=None)
@given(schema=schemas(), seed=st.integers(0, 2**64 - 1), dtype=st.sampled_from(sorted(DTYPES)))
def test_any_planned_case_can_be_made(schema: OpSchema, seed: int, dtype: str):
    for case in plan_cases(
        schema, seed=seed, dtype=dtype, count=24, strategies=[], layouts=LAYOUTS
    ):
        assert convert(plain(case), Case) == case
        if case.numel > 20_000:
            continue
        for spec in case.inputs:
            array = materialise(case)[spec.name]
            assert array.shape == spec.shape
            assert array.dtype == numpy_dtype(dtype)


@settings(max_examples=300, deadline=None)
@given(
    shape=st.lists(st.integers(0, 6), max_size=4).map(tuple),
    layout=st.sampled_from(LAYOUTS),
    dtype=st.sampled_from(sorted(DTYPES)),
    guarded=st.booleans(),
)
def test_layouts_hold_any_shape(shape: tuple[int, ...], layout: str, dtype: str, guarded: bool):
    values = np.ones(shape, numpy_dtype(dtype))
    laid = lay_out_guarded(values, layout, guarded=guarded)
    assert laid.array.tobytes() == values.tobytes()
    assert laid.intact()
    strides = describe(layout, shape)
    assert tuple(s * values.itemsize for s in strides) == laid.array.strides
    if effective_layout(layout, shape) != "expanded" and math.prod(shape):
        reached = {
            sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(shape)
        }
        assert len(reached) == math.prod(shape), "no two elements share a place"


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(
            ["dims", "inputs", "output", "outputs", "name", "min", "max", "multiple_of",
             "candidates", "dtype", "range", "strategy", "M", "x"]
        ) | st.text(max_size=4), inner, max_size=5,
    ),
    max_leaves=25,
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(value=json_like, names=st.lists(st.sampled_from(["x", "y", "M"]), max_size=2, unique=True))
@pytest.mark.ci
def test_any_value_is_parsed_or_reported_and_nothing_is_raised(value: object, names: list[str]):
    found: list[str] = []

    def report(path: tuple[str | int, ...], slug: str, message: str, hint: str) -> None:
        found.append(slug)
        assert message
        assert len(message) < 400

    schema = parse_schema(value, names, report)
    assert (schema is None) == bool(set(found) - WARNING_SLUGS)
    if schema is not None and schema.inputs:
        plan_cases(schema, seed=1, dtype="float32", count=30, strategies=[], layouts=[])
