"""From a case to tensors: gpuemu's bytes, real layouts, decoys, guarded memory."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from for_each import for_each
from msgspec.structs import replace

from gpuemu_flow.cases.generate import (
    decoy_values,
    materialise,
    materialise_each,
    materialise_guarded,
)
from gpuemu_flow.cases.op_schema import BUILTIN_SCHEMAS, Dim, OpSchema, TensorDef
from gpuemu_flow.cases.plan import plan_cases
from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.types import LAYOUTS, STRATEGIES, Case, InputSpec
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.numerics.layouts import describe
from gpuemu_flow.workers.arena import whole_memory

# Case seed, dtype, and per input its shape and the sha256 of its bytes: made by gpuemu's daemon.
RECORDED = [
    (13013218331088976615, "float32", {
        "a": ((2, 5, 3), "149b6f7f7d7864c1dc780a478e48d59f53fb3c74637befd22089471804ed97b8"),
        "b": ((2, 5, 3), "4b327cc77cde02c00c6a7386dc071a67151247c9479b72b54f24c8f03fd911cc"),
    }),
    (953419858158702965, "float32", {
        "a": ((7, 3), "6733b6ea2c92fb5ae22f01cf41b2adbf6f0b23046d42514ad8c443e11e3a0a81"),
        "b": ((3, 5), "87a4e294c4f09c647ea2c2b656fb03f992ea3ddfc60532d6a88fde6d100d1ca9"),
    }),
    (9413858080510398274, "float16", {
        "x": ((3, 5, 3), "37a51f16b6ed4a4c20093c5a5364f4496a492f440a4710321cddd81fe5e4eda9"),
    }),
    (18413826956831606590, "float64", {
        "x": ((1, 5, 3), "305c8b776bce38be411fbd193eb4938db365f85132473b7a30b01dd4f26b25aa"),
    }),
    (17869952024465984284, "int64", {
        "x": ((3, 5, 3), "bae18a237c44e0a1dbbad3e7bebdcb81be10165320ade665d38adec3b0ed678a"),
    }),
    (7810421671711808306, "uint16", {
        "x": ((2, 5, 4), "259b12d18191316b437a9ae35e45bbcac809fde8fd878c99adacd9dabdb5d527"),
    }),
    (14321062886696948757, "bool", {
        "x": ((1, 5, 4), "39fef292c7f517ececb12a73eab18b58ce5fa47412b4851b4799ccb343f1c992"),
    }),
]  # fmt: skip


@for_each(("seed", "dtype", "inputs"), RECORDED)
def test_uniform_data_are_gpuemus_in_every_layout(
    seed: int, dtype: str, inputs: dict[str, tuple[tuple[int, ...], str]]
):
    for layout in ["contiguous", "strided", "transposed", "offset"]:
        specs = tuple(
            InputSpec(name, shape, dtype, layout, "uniform", position)
            for position, (name, (shape, _)) in enumerate(inputs.items())
        )
        tensors = materialise(Case(0, seed, dtype, layout, "uniform", specs))
        assert list(tensors) == list(inputs)
        for name, (_, digest) in inputs.items():
            assert hashlib.sha256(tensors[name].tobytes()).hexdigest() == digest


def some_cases(dtype: str = "float32", count: int = 90) -> list[Case]:
    return plan_cases(
        BUILTIN_SCHEMAS["norm"], seed=5, dtype=dtype, count=count, strategies=[], layouts=LAYOUTS
    )


def test_tensors_are_what_the_case_says():
    seen = set()
    for case in some_cases():
        for spec, (name, array) in zip(case.inputs, materialise(case).items(), strict=True):
            assert (name, array.shape) == (spec.name, spec.shape)
            assert array.dtype == numpy_dtype(spec.dtype)
            assert array.flags.writeable == (spec.layout != "expanded")
            strides = tuple(stride // array.itemsize for stride in array.strides)
            if array.size > 1:
                wanted = describe(spec.layout, spec.shape)
                meaningful = [i for i, size in enumerate(array.shape) if size > 1]
                assert [strides[i] for i in meaningful] == [wanted[i] for i in meaningful]
            seen.add((spec.layout, spec.strategy))
    assert {layout for layout, _ in seen} == set(LAYOUTS)
    assert {strategy for _, strategy in seen} == set(STRATEGIES)


def test_an_input_depends_neither_on_the_others_nor_on_the_index():
    case = next(c for c in some_cases() if c.strategy == "ties" and len(c.inputs) > 1)
    alone = replace(case, index=999, inputs=case.inputs[1:2])
    name = case.inputs[1].name
    assert materialise(alone)[name].tobytes() == materialise(case)[name].tobytes()


def test_a_layout_changes_no_value():
    spec = InputSpec("x", (6, 7), "float32", "contiguous", "normal", 0)
    case = Case(0, 3, "float32", "contiguous", "normal", (spec,))
    plain = materialise(case)["x"]

    def laid_out(layout: str) -> np.ndarray:
        return materialise(replace(case, inputs=(replace(spec, layout=layout),)))["x"]

    for layout in ("strided", "transposed", "offset"):
        assert laid_out(layout).tobytes() == plain.tobytes()
    expanded = laid_out("expanded")
    assert (expanded == expanded[0]).all()


def test_a_case_survives_json():
    for case in some_cases(count=40):
        assert convert(plain(case), Case) == case


def test_a_decoy_has_other_values_in_the_same_places():
    for case in some_cases(count=60):
        real = materialise(case)
        false = materialise(case, decoy_values(case, real))
        assert any(real[name].tobytes() != false[name].tobytes() for name in real)
        for name in real:
            assert real[name].strides == false[name].strides
            assert real[name].dtype == false[name].dtype
            assert real[name].flags.writeable == false[name].flags.writeable


def test_guarded_tensors_equal_the_plain_ones():
    for case in some_cases(count=40):
        plain = materialise(case)
        for name, laid in materialise_guarded(case).items():
            assert laid.array.tobytes() == plain[name].tobytes()
            assert laid.intact()
            laid.buffer[laid.placement.offset - 1] ^= 1
            assert not laid.intact()


def test_empty_and_scalar_inputs():
    specs = (InputSpec("e", (0, 3), "float32"), InputSpec("s", (), "int64", position=1))
    tensors = materialise(Case(0, 1, "float32", "contiguous", "uniform", specs))
    assert tensors["e"].shape == (0, 3)
    assert tensors["s"].shape == ()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "bool"])
def test_equally_shaped_inputs_are_drawn_together_to_the_same_bits(dtype: str) -> None:
    sizes = Dim("N", (1, 16, 33)), Dim("M", (4, 40))
    tensors = (
        TensorDef("x", ("N", "M")),
        TensorDef("row", ("M",), low=-2.0, high=3.0),
        TensorDef("open", ("N",), low=0.0),
        TensorDef("scalar", ()),
    )
    schema = OpSchema(sizes, tensors, (TensorDef("y", ("N", "M")),), ())
    cases = plan_cases(
        schema, seed=5, dtype=dtype, count=80, strategies=STRATEGIES, layouts=LAYOUTS
    )
    for case, together in zip(cases, materialise_each(cases), strict=True):
        alone = materialise(case)
        assert list(together) == list(alone)
        for name, array in alone.items():
            found = together[name]
            assert (found.shape, found.dtype, found.strides) == (
                array.shape,
                array.dtype,
                array.strides,
            )
            assert found.flags.writeable == array.flags.writeable
            assert found.tobytes() == array.tobytes()


def test_inputs_that_were_drawn_together_share_no_memory() -> None:
    schema = OpSchema((Dim("N", (4,)),), (TensorDef("x", ("N", "N")),), (), ())
    cases = plan_cases(
        schema, seed=5, dtype="float32", count=60, strategies=["uniform"], layouts=LAYOUTS
    )
    wholes = [whole_memory(array) for made in materialise_each(cases) for array in made.values()]
    for number, whole in enumerate(wholes):
        assert not any(np.shares_memory(whole, other) for other in wholes[number + 1 :])
