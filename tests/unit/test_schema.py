"""Schemas from configuration values: built-ins, tables, and every error of a table at once."""

from __future__ import annotations

import math

import pytest
from for_each import for_each
from msgspec.structs import replace

from gpuemu_flow.cases.op_schema import (
    BUILTIN_SCHEMAS,
    WARNING_SLUGS,
    Dim,
    OpSchema,
    TensorDef,
    default_schema,
    fixed_shapes_schema,
    plain_shapes_schema,
    with_shapes,
)
from gpuemu_flow.cases.schema import parse_schema


class Reports:
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.found: list[tuple[tuple[str | int, ...], str, str, str]] = []

    def __call__(self, path: tuple[str | int, ...], slug: str, message: str, hint: str) -> None:
        self.found.append((path, slug, message, hint))

    @property
    def slugs(self) -> set[str]:
        return {slug for _, slug, _, _ in self.found}

    def at(self, *path: str | int) -> list[str]:
        return [slug for where, slug, _, _ in self.found if where == path]


def parse(value: object, names: tuple[str, ...] = ()) -> tuple[OpSchema | None, Reports]:
    reports = Reports()
    return parse_schema(value, names, reports), reports


def matmul_table(**changes: object) -> dict[str, object]:
    table: dict[str, object] = {
        "dims": {
            "M": [1, 7, 128],
            "K": {"min": 1, "max": 512},
            "N": {"min": 8, "max": 512, "multiple_of": 8},
        },
        "inputs": {"a": ["M", "K"], "b": ["K", "N"]},
        "output": ["M", "N"],
    }
    return {**table, **changes}


def test_the_documented_table():
    schema, reports = parse(matmul_table(), ("a", "b"))
    assert not reports.found
    assert schema == OpSchema(
        dims=(Dim("M", (1, 7, 128)), Dim("K", (), 1, 512), Dim("N", (), 8, 512, 8)),
        inputs=(TensorDef("a", ("M", "K")), TensorDef("b", ("K", "N"))),
        outputs=(TensorDef("output", ("M", "N")),),
    )


def test_fixed_sizes_dtypes_ranges_and_strategies_of_single_tensors():
    table = {
        "dims": {"N": [4, 5]},
        "inputs": {
            "table": [100, 16],
            "index": {"dims": ["N"], "dtype": "i32", "range": [0, 100]},
            "scale": {"dims": [], "strategy": "normal", "range": [0, math.inf]},
            "shift": {"dims": [], "range": [-math.inf, 2.5]},
        },
        "outputs": {"rows": ["N", 16], "lse": ["N"]},
    }
    schema, reports = parse(table, ("index", "scale", "table", "shift"))
    assert not reports.found
    assert schema is not None
    assert schema.inputs == (
        TensorDef("index", ("N",), "int32", 0, 100),
        TensorDef("scale", (), None, 0, None, "normal"),
        TensorDef("table", (100, 16)),
        TensorDef("shift", (), None, None, 2.5),
    ), "inputs come in the order of input_names"
    assert [t.name for t in schema.outputs] == ["rows", "lse"]


def test_a_list_of_named_tables_is_the_same_as_a_table():
    as_list = {
        "dims": [{"name": "M", "candidates": [1, 2]}],
        "inputs": [{"name": "x", "dims": ["M", 3]}],
        "output": {"name": "out", "dims": ["M"]},
    }
    as_table = {
        "dims": {"M": [1, 2]},
        "inputs": {"x": ["M", 3]},
        "outputs": {"out": ["M"]},
    }
    first, reports = parse(as_list)
    assert not reports.found
    assert first == parse(as_table)[0]


@pytest.mark.parametrize("name", sorted(BUILTIN_SCHEMAS))
def test_each_builtin_has_ranges_and_stays_small(name: str):
    schema, reports = parse(name)
    assert not reports.found
    assert schema is not None
    largest = {dim.name: dim.largest for dim in schema.dims}
    assert all(not dim.candidates and dim.max > dim.min for dim in schema.dims)
    for tensor in (*schema.inputs, *schema.outputs):
        assert math.prod(largest[axis] for axis in tensor.dims) < 1_000_000


def test_builtins_take_the_ops_own_input_names():
    by_position, _ = parse("matmul", ("x", "weight"))
    assert by_position is not None
    assert [(t.name, t.dims) for t in by_position.inputs] == [
        ("x", ("M", "K")),
        ("weight", ("K", "N")),
    ]
    by_name, _ = parse("attention", ("v", "q", "k"))
    assert by_name is not None
    assert [t.name for t in by_name.inputs] == ["v", "q", "k"]
    several, _ = parse("elementwise", ("x", "y", "z"))
    assert several is not None
    assert [t.name for t in several.inputs] == ["x", "y", "z"]
    without_bias, reports = parse("norm", ("x", "gamma"))
    assert not reports.found
    assert without_bias is not None
    assert [(t.name, t.dims) for t in without_bias.inputs] == [
        ("x", ("B", "S", "H")),
        ("gamma", ("H",)),
    ]


def test_a_builtin_drops_the_dims_of_the_inputs_that_the_op_lacks():
    schema, reports = parse("norm", ("weight",))
    assert not reports.found
    assert schema is not None
    assert [dim.name for dim in schema.dims] == ["H"]
    assert schema.outputs == ()


def test_a_builtin_with_the_wrong_number_of_inputs():
    schema, reports = parse("matmul", ("a", "b", "c"))
    assert schema is None
    assert reports.slugs == {"schema-inputs"}


def test_an_unknown_builtin_suggests_the_nearest():
    schema, reports = parse("matmull")
    assert schema is None
    ((path, slug, message, hint),) = reports.found
    assert (path, slug) == ((), "schema-unknown")
    assert "matmull" in message
    assert "'matmul'" in hint


@pytest.mark.parametrize("value", [None, 3, 1.5, True, ["M"], b"matmul"])
def test_a_schema_of_the_wrong_type(value: object):
    schema, reports = parse(value)
    assert schema is None
    assert reports.slugs == {"schema-type"}


@for_each(
    ("dim", "slug", "path"),
    [
        ([], "schema-dim-empty", ()),
        ({}, "schema-dim-empty", ()),
        ({"min": 3}, "schema-dim-empty", ()),
        ({"candidates": []}, "schema-dim-empty", ("candidates",)),
        ([1, -2], "schema-dim-size", (1,)),
        ([1.0], "schema-dim-size", (0,)),
        ([True], "schema-dim-size", (0,)),
        (["7"], "schema-dim-size", (0,)),
        ([2**31], "schema-dim-size", (0,)),
        ([10**5000], "schema-dim-size", (0,)),
        ("large", "schema-unknown-dim", ()),
        ("2*", "schema-expression", ()),
        (None, "schema-dim-type", ()),
        ({"max": "9"}, "schema-dim-size", ("max",)),
        ({"min": -1, "max": 9}, "schema-dim-size", ("min",)),
        ({"min": 1, "max": 9, "multiple_of": 0}, "schema-dim-size", ("multiple_of",)),
        ({"min": 9, "max": 3}, "schema-dim-range", ()),
        ({"min": 9, "max": 15, "multiple_of": 8}, "schema-dim-range", ()),
        (list(range(5000)), "schema-too-large", ()),
    ],
)
def test_bad_dims(dim: object, slug: str, path: tuple[str | int, ...]):
    dims = {"M": [1, 2], "K": dim, "N": [3]}
    schema, reports = parse(matmul_table(dims=dims), ("a", "b"))
    assert schema is None
    assert reports.at("dims", "K", *path) == [slug]
    assert len(reports.found) == 1, "one mistake, one message"
    assert all(len(message) < 200 for _, _, message, _ in reports.found)
    assert all(
        message.startswith(("dim", "'", "size")) for _, _, message, hint in reports.found if hint
    )


def test_empty_and_single_sizes_are_allowed():
    dims = {"M": [0, 1], "K": 5, "N": {"min": 0, "max": 4}}
    schema, reports = parse(matmul_table(dims=dims))
    assert not reports.found
    assert schema is not None
    assert schema.dims[1] == Dim("K", (5,))


@for_each(
    ("tensor", "slug", "path"),
    [
        (["M", "Q"], "schema-unknown-dim", (1,)),
        (["M", -1], "schema-dim-size", (1,)),
        (["M", 2.5], "schema-dim-size", (1,)),
        ("M", "schema-type", ()),
        ({"dtype": "float32"}, "schema-type", ()),
        ({"dims": ["M", "K"], "dtype": "float99"}, "schema-dtype", ("dtype",)),
        ({"dims": ["M", "K"], "dtype": 3}, "schema-dtype", ("dtype",)),
        ({"dims": ["M", "K"], "range": [3, 1]}, "schema-range", ("range",)),
        ({"dims": ["M", "K"], "range": [math.nan, 1]}, "schema-range", ("range",)),
        ({"dims": ["M", "K"], "range": [math.inf, math.inf]}, "schema-range", ("range",)),
        ({"dims": ["M", "K"], "range": [1]}, "schema-range", ("range",)),
        ({"dims": ["M", "K"], "range": [True, 2]}, "schema-range", ("range",)),
        ({"dims": ["M", "K"], "strategy": "gaussian"}, "schema-strategy", ("strategy",)),
        ({"dims": ["M", "K"], "strategy": ["normal"]}, "schema-strategy", ("strategy",)),
        (["M"] * 33, "schema-too-large", ()),
    ],
)
def test_bad_tensors(tensor: object, slug: str, path: tuple[str | int, ...]):
    inputs = {"a": tensor, "b": ["M", "K", "N"]}
    schema, reports = parse(matmul_table(inputs=inputs), ("a", "b"))
    assert schema is None
    assert reports.at("inputs", "a", *path) == [slug]
    assert len(reports.found) == 1, "one mistake, one message"


def test_an_unknown_dim_suggests_the_nearest():
    table = {"dims": {"ROWS": [3]}, "inputs": {"x": ["ROW"]}}
    _, reports = parse(table)
    hints = [hint for _, slug, _, hint in reports.found if slug == "schema-unknown-dim"]
    assert hints == ["did you mean 'ROWS'?"]


def test_a_scalar_is_no_size_and_no_kind():
    sized = {"dims": {"ROWS": [3]}, "inputs": {"x": ["ROWS"]}, "scalars": {"top": [1, 4]}}
    _, reports = parse({**sized, "output": ["top"]})
    (hint,) = [hint for _, slug, _, hint in reports.found if slug == "schema-unknown-dim"]
    assert 'scalars.top = { range = ["top_size", "top_size"] }' in hint
    taken = {
        "dims": {"ROWS": [3], "top_size": {"min": 1, "max": 3}},
        "inputs": {"x": ["ROWS"]},
        "scalars": {"top": {"range": ["top_size", "top_size"]}},
        "output": ["top_size"],
    }
    schema, reports = parse(taken)
    assert schema is not None and not reports.found
    kind = {"dims": {"M": [3]}, "inputs": {"x": ["M"], "k": {"dims": [], "kind": "scalar"}}}
    _, reports = parse(kind)
    hints = [hint for _, slug, _, hint in reports.found if slug == "schema-kind"]
    assert hints == ["scalars stand beside the inputs: scalars = { k = [1, 2] }"]


def test_duplicate_names():
    doubled = {
        "dims": [{"name": "M", "candidates": [1]}, {"name": "M", "candidates": [2]}],
        "inputs": {"x": ["M"]},
    }
    schema, reports = parse(doubled)
    assert schema is None
    assert reports.at("dims", 1) == ["schema-duplicate"]
    both, reports = parse(matmul_table(outputs={"c": ["M", "N"]}))
    assert both is None
    assert reports.at("output") == ["schema-duplicate"]


def test_inputs_that_the_op_has_not_or_the_schema_has_not():
    inputs = {"a": ["M", "K"], "bb": ["K", "N"]}
    schema, reports = parse(matmul_table(inputs=inputs), ("a", "b"))
    assert schema is None
    assert reports.at("inputs", "bb") == ["schema-inputs"]
    assert reports.at("inputs") == ["schema-inputs"]
    assert "did you mean 'b'?" in [hint for *_, hint in reports.found]


@for_each("inputs", [None, {}, [], 3, ["a"], [{"dims": ["M"]}], {"": ["M"]}])
def test_no_usable_inputs(inputs: object):
    schema, reports = parse(matmul_table(inputs=inputs, output=["M", "K", "N"]), ("a", "b"))
    assert schema is None
    assert reports.slugs & {"schema-type", "schema-inputs", "schema-name"}


def test_unused_dims_are_warnings_only():
    dims = {"M": [1], "K": [2], "N": [3], "Z": [4]}
    schema, reports = parse(matmul_table(dims=dims), ("a", "b"))
    assert reports.at("dims", "Z") == ["schema-unused-dim"]
    assert reports.slugs <= WARNING_SLUGS
    assert schema is not None
    assert [dim.name for dim in schema.dims] == ["M", "K", "N"]


def test_an_unknown_key_is_an_error():
    schema, reports = parse({**matmul_table(), "input": {}}, ("a", "b"))
    assert reports.at("input") == ["config-unknown-key"]
    assert schema is None


def test_all_errors_are_reported_at_once():
    table = matmul_table(
        dims={"M": [], "K": {"min": 5, "max": 1}, "N": [-1]},
        inputs={"a": ["M", "Q"], "b": {"dims": ["K", "N"], "dtype": "x", "strategy": "y"}},
    )
    _, reports = parse(table, ("a", "b"))
    assert reports.slugs == {
        "schema-dim-empty", "schema-dim-range", "schema-dim-size",
        "schema-unknown-dim", "schema-dtype", "schema-strategy",
    }  # fmt: skip


def test_a_schema_that_no_machine_could_run():
    table = {"dims": {"M": [2**20]}, "inputs": {"x": ["M", "M"]}}
    schema, reports = parse(table)
    assert schema is None
    assert reports.at("inputs", "x") == ["schema-too-large"]


def test_the_default_schema_has_one_elementwise_tensor_per_input():
    schema = default_schema(("x", "y"))
    assert [t.name for t in schema.inputs] == ["x", "y"]
    assert {t.dims for t in schema.inputs} == {("B", "S", "H")}
    assert [t.name for t in default_schema(()).inputs] == ["input"]


def test_plain_shapes_leave_out_the_lists_that_are_empty():
    full = plain_shapes_schema(("x", "y"), [1, 2, 2], [64], [256], [[1], [7]])
    assert full.dims == (Dim("batch", (1, 2)), Dim("sequence", (64,)), Dim("hidden", (256,)))
    assert full.fixed_shapes == ((1,), (7,))
    assert all(t.dims == ("batch", "sequence", "hidden") for t in full.inputs)
    two = plain_shapes_schema((), [1], [64], [], [])
    assert [t.dims for t in two.inputs] == [("batch", "sequence")]


def test_fixed_shapes():
    schema = fixed_shapes_schema(("x",), [[2, 3], [2, 3], []])
    assert schema.fixed_shapes == ((2, 3), ())
    assert schema.dims == ()


def test_shapes_from_the_command_line():
    matmul = BUILTIN_SCHEMAS["matmul"]
    (pinned,) = with_shapes(matmul, [(7, 3, 5)])
    assert [(d.name, d.candidates) for d in pinned.dims] == [("M", (7,)), ("K", (3,)), ("N", (5,))]
    (whole,) = with_shapes(default_schema(("x", "y")), [(4, 4)])
    assert whole.fixed_shapes == ((4, 4),)
    (other_rank,) = with_shapes(plain_shapes_schema(("x",), [1], [64], [], []), [(2, 3, 4)])
    assert other_rank.fixed_shapes == ((2, 3, 4),)
    own = replace(default_schema(("x", "y")), dims=(Dim("B"), Dim("N")))
    with pytest.raises(ValueError, match="8x128x512 has 3 sizes; the op's schema has 2 dims: B, N"):
        with_shapes(own, [(8, 128, 512)])
    with pytest.raises(ValueError, match="M, K, N"):
        with_shapes(matmul, [(7, 3)])
