"""Inputs of a kind keep what the kind says, under every strategy, and so do shrunk ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpuemu_flow.cases.generate import decoy, input_values, materialise
from gpuemu_flow.cases.minimize import minimise
from gpuemu_flow.cases.op_schema import OpSchema, schema_from_json, schema_to_json
from gpuemu_flow.cases.plan import plan_cases
from gpuemu_flow.cases.schema import parse_schema
from gpuemu_flow.numerics.dtypes import float_limits, to_float64
from gpuemu_flow.types import DTYPES, LAYOUTS, Case
from gpuemu_flow.value_rules import KINDS, PATTERNS

Arrays = dict[str, np.ndarray]
Table = dict[str, Any]


def schema_of(table: Table) -> OpSchema:
    found: list[object] = []
    schema = parse_schema(table, (), lambda *problem: found.append(problem))
    assert schema is not None, found
    assert found == []
    return schema


def faults(table: Table) -> list[tuple[tuple[str | int, ...], str]]:
    found: list[tuple[tuple[str | int, ...], str]] = []
    parse_schema(table, (), lambda path, slug, message, hint: found.append((path, slug)))
    return found


def cases_of(table: Table, dtype: str = "float32", count: int = 60) -> list[Case]:
    layouts = ("contiguous", "strided", "offset")
    return plan_cases(
        schema_of(table), seed=7, dtype=dtype, count=count, strategies=(), layouts=layouts
    )


def rows(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, values.shape[-1])


def is_permutation(x: np.ndarray, _: Case) -> bool:
    return bool((np.sort(rows(x), axis=1) == np.arange(x.shape[-1])).all())


def is_sorted(x: np.ndarray, _: Case) -> bool:
    wide = to_float64(x)
    return bool((wide[..., 1:] >= wide[..., :-1]).all())


def is_falling(x: np.ndarray, case: Case) -> bool:
    return is_sorted(x[..., ::-1], case)


def are_offsets(x: np.ndarray, case: Case) -> bool:
    sizes = dict(case.dims)
    return is_sorted(x, case) and bool((x[..., 0] == 0).all() and (x[..., -1] == sizes["T"]).all())


def are_lengths(x: np.ndarray, case: Case) -> bool:
    to = dict(case.dims)["T"]
    inside = bool((x >= 0).all() and (x <= to).all())
    if x.shape[-1] < 2:
        return inside
    return inside and bool((x == 0).any(axis=-1).all() and (x == to).any(axis=-1).all())


def is_mask(x: np.ndarray, _: Case) -> bool:
    return bool(x.astype(bool).any(axis=-1).all())


def is_one_hot(x: np.ndarray, _: Case) -> bool:
    wide = x.astype(np.float64)
    return bool(((wide == 1).sum(axis=-1) == 1).all() and ((wide != 0).sum(axis=-1) == 1).all())


def is_positive(x: np.ndarray, _: Case) -> bool:
    wide = to_float64(x)
    return bool((wide > 0).all() and np.isfinite(wide).all())


def are_probabilities(x: np.ndarray, _: Case) -> bool:
    wide = to_float64(x)
    eps = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}[x.dtype.name]
    return bool((wide >= 0).all() and (abs(wide.sum(axis=-1) - 1) < eps).all())


def is_symmetric(x: np.ndarray, _: Case) -> bool:
    return bool((to_float64(x) == np.swapaxes(to_float64(x), -1, -2)).all())


def is_definite(x: np.ndarray, case: Case) -> bool:
    return is_symmetric(x, case) and bool(np.linalg.eigvalsh(to_float64(x)).min() > 0)


def is_unique(x: np.ndarray, _: Case) -> bool:
    return all(len(np.unique(row)) == len(row) for row in rows(to_float64(x)))


def is_quantized(x: np.ndarray, _: Case) -> bool:
    return bool((x >= -8).all() and (x <= 7).all())


def is_inside(x: np.ndarray, case: Case) -> bool:
    return bool((x >= 0).all() and (x < dict(case.dims)["V"]).all())


def anything(x: np.ndarray, case: Case) -> bool:
    return True


KEPT: list[tuple[str, Table, str, tuple[str, ...], Callable[[np.ndarray, Case], bool]]] = [
    ("permutation", {"dims": ["B", "N"]}, "int32", (), is_permutation),
    ("sorted", {"dims": ["B", "N"]}, "int64", (), is_sorted),
    ("sorted", {"dims": ["B", "N"]}, "", ("float32", "bfloat16"), is_sorted),
    ("sorted", {"dims": ["N"], "range": [0, "T"]}, "uint8", (), is_sorted),
    ("sorted", {"dims": ["B", "N"], "descending": True}, "int8", (), is_falling),
    ("offsets", {"dims": ["N+1"], "to": "T"}, "int32", (), are_offsets),
    ("lengths", {"dims": ["N"], "to": "T"}, "int64", (), are_lengths),
    ("mask", {"dims": ["B", "N"]}, "bool", (), is_mask),
    ("mask", {"dims": ["B", "N"], "share": 0.0}, "", ("float16",), is_mask),
    ("one_hot", {"dims": ["B", "N"]}, "", ("float32", "bfloat16"), is_one_hot),
    ("one_hot", {"dims": ["B", "N"]}, "int8", (), is_one_hot),
    ("positive", {"dims": ["B", "N"]}, "", ("float32", "float16", "bfloat16"), is_positive),
    ("positive", {"dims": ["N"]}, "uint8", (), is_positive),
    ("probabilities", {"dims": ["B", "N"]}, "", ("float32", "float16"), are_probabilities),
    ("symmetric", {"dims": ["N", "N"]}, "", ("float32", "float16"), is_symmetric),
    ("symmetric", {"dims": ["B", "N", "N"]}, "int32", (), is_symmetric),
    ("positive_definite", {"dims": ["N", "N"]}, "", ("float32", "bfloat16"), is_definite),
    ("unique", {"dims": ["B", "N"]}, "int32", (), is_unique),
    ("unique", {"dims": ["N"], "range": [3, "N+2"]}, "int64", (), is_unique),
    ("unique", {"dims": ["B", "N"]}, "", ("float32", "bfloat16"), is_unique),
    ("indices", {"dims": ["B", "N"], "of": "table"}, "int64", (), is_inside),
    ("quantized", {"dims": ["B", "N"], "bits": 4}, "int8", (), is_quantized),
    ("packed", {"dims": ["B", "N"]}, "uint8", (), anything),
]  # fmt: skip


def table_of(kind: str, said: Table, dtype: str) -> Table:
    more = {"dtype": dtype} if dtype else {}
    return {
        "dims": {"B": [1, 3, 5], "N": [1, 2, 7, 33, 64], "V": [1, 2, 257], "T": [0, 1, 9, 100]},
        "inputs": {"x": {"kind": kind, **said, **more}, "table": ["V", "T"]},
    }


@pytest.mark.parametrize(("kind", "said", "dtype", "dtypes", "holds"), KEPT)
def test_a_kind_is_kept_in_every_case(
    kind: str, said: Table, dtype: str, dtypes: tuple[str, ...], holds: Any
) -> None:
    schema = table_of(kind, said, dtype)
    for used in dtypes or ("float32",):
        seen = set()
        for case in parsed_cases(schema, used):
            spec = case.inputs[0]
            seen.add(spec.strategy)
            for arrays in (materialise(case), decoy(case)):
                values = arrays["x"]
                assert values.dtype.name == (dtype or used)
                assert holds(values, case), (case.to_text(), values)
            assert Case.from_json(case.to_json()) == case
        assert seen == set(PATTERNS[kind]), "every strategy of the kind has its turn"


def parsed_cases(table: Table, dtype: str) -> list[Case]:
    schema = parse_schema(table, (), lambda *problem: None)
    assert schema is not None
    assert schema_from_json(schema_to_json(schema)) == schema
    return plan_cases(schema, seed=3, dtype=dtype, count=80, strategies=(), layouts=LAYOUTS)


def test_every_kind_is_looked_at() -> None:
    assert {kind for kind, *_ in KEPT} == set(KINDS)


@pytest.mark.parametrize(("kind", "said", "dtype", "dtypes", "holds"), KEPT)
def test_shrunk_inputs_are_of_the_kind(
    kind: str, said: Table, dtype: str, dtypes: tuple[str, ...], holds: Any
) -> None:
    table = table_of(kind, said, dtype)
    schema = parse_schema(table, (), lambda *problem: None)
    assert schema is not None
    used = (dtypes or ("float32",))[0]
    cases = plan_cases(schema, seed=5, dtype=used, count=24, strategies=(), layouts=())
    large = max(cases, key=lambda case: min(case.inputs[0].shape, default=0))
    asked = []

    def still_fails(candidate: Any) -> bool:
        asked.append(candidate)
        return True

    found = minimise(
        dict(materialise(large)),
        still_fails=still_fails,
        budget=300,
        schema=schema,
        dims=dict(large.dims),
    )
    assert found.reproduced
    for candidate in asked:
        case = Case(0, 0, used, "contiguous", "", large.inputs, dims=tuple(candidate.dims.items()))
        values = candidate.inputs["x"]
        if kind != "lengths":  # a shrunk batch need not have an empty and a full row
            assert holds(values, case), (candidate.dims, values)
        else:
            assert (values >= 0).all()
            assert (values <= candidate.dims["T"]).all()
    sizes = [array.size for array in found.inputs.values()]
    assert sum(sizes) <= sum(array.size for array in materialise(large).values())


def test_both_ends_of_a_range_are_in_the_first_cases() -> None:
    table = {
        "dims": {"N": {"min": 1, "max": 70}, "V": [257]},
        "inputs": {
            "flag": {"dims": ["N"], "dtype": "int32", "range": [0, 1]},
            "row": {"dims": ["N"], "dtype": "int64", "range": [0, "V-1"]},
            "free": {"dims": ["N"], "dtype": "int16"},
            "above": {"dims": ["N"], "dtype": "uint8", "range": [3, float("inf")]},
            "share": {"dims": ["N"], "range": [0.25, 0.5]},
            "table": ["V"],
        },
    }
    first = plan_cases(
        schema_of(table), seed=1, dtype="float32", count=2, strategies=("normal",), layouts=()
    )
    ends = {
        "flag": {0, 1}, "row": {0, 256}, "free": {-32768, 32767}, "above": {3, 255},
        "share": {0.25, 0.5},
    }  # fmt: skip
    for name, wanted in ends.items():
        met = set()
        for case in first:
            met |= set(materialise(case)[name].tolist())
        assert wanted <= met, name


def test_each_range_that_follows_the_dims_has_its_ends() -> None:
    table = {
        "dims": {"N": {"min": 2, "max": 50}, "V": [1, 2, 257]},
        "inputs": {
            "table": ["V"],
            "row": {"dims": ["N"], "dtype": "int64", "range": [0, "V-1"]},
        },
    }
    cases = plan_cases(
        schema_of(table), seed=1, dtype="float32", count=24, strategies=("normal",), layouts=()
    )
    for size in (1, 2, 257):
        first = next(case for case in cases if dict(case.dims)["V"] == size)
        assert {0, size - 1} <= set(materialise(first)["row"].tolist()), size


def test_single_elements_have_one_end_in_turn() -> None:
    table = {"dims": {}, "inputs": {"x": {"dims": [], "dtype": "int32", "range": [2, 9]}}}
    first = cases_of(table, count=2)
    assert {int(materialise(case)["x"]) for case in first} == {2, 9}


def test_values_are_mixed_with_a_range() -> None:
    labels = {"dims": ["N"], "dtype": "int64", "range": [0, "V-1"], "values": [-100], "share": 0.1}
    table = {"dims": {"N": [40, 200], "V": [3, 7]}, "inputs": {"x": labels, "w": ["V"]}}
    for case in cases_of(table):
        values, size = materialise(case)["x"], dict(case.dims)["V"]
        ignored = values == -100
        assert ignored.any()
        assert not ignored.all()
        assert (values[~ignored] >= 0).all()
        assert (values[~ignored] < size).all()


def test_values_alone_are_all_there_is() -> None:
    table = {"dims": {"N": [9]}, "inputs": {"x": {"dims": ["N"], "values": [0.5, 2, -1]}}}
    for case in cases_of(table, count=12):
        assert set(materialise(case)["x"].tolist()) == {0.5, 2.0, -1.0}


def test_a_range_says_whether_there_is_nan() -> None:
    def special(**said: Any) -> np.ndarray:
        table = {"dims": {"N": [64]}, "inputs": {"x": {"dims": ["N", "N"], **said}}}
        cases = plan_cases(
            schema_of(table), seed=2, dtype="float32", count=12, strategies=("special",), layouts=()
        )
        return np.concatenate([materialise(case)["x"].ravel() for case in cases])

    assert np.isnan(special()).any()
    assert np.isfinite(special(range=[-1.0, 1.0])).all()
    assert np.isfinite(special(nonfinite=False)).all()
    both = special(range=[-1.0, 1.0], nonfinite=True)
    assert np.isnan(both).any()
    assert np.isinf(both).any()
    assert abs(both[np.isfinite(both)]).max() <= 1


def test_dims_by_expressions_for_inputs_and_outputs() -> None:
    table = {
        "dims": {"Hk": [1, 2], "G": [1, 3], "Hq": "G*Hk", "D": [4, 8], "H": {"min": 3, "max": 40}},
        "inputs": {"q": ["Hq", "2*D"], "k": ["Hk", "D"], "x": ["H"]},
        "output": {"dims": ["(H-1)//2+1"]},
    }
    for case in cases_of(table):
        sizes = dict(case.dims)
        shapes = {spec.name: spec.shape for spec in case.inputs}
        assert shapes["q"] == (sizes["G"] * sizes["Hk"], 2 * sizes["D"])
        assert sizes["Hq"] == sizes["G"] * sizes["Hk"]
        assert sizes["(H-1)//2+1"] == (sizes["H"] - 1) // 2 + 1


def test_sizes_that_an_expression_forbids_are_never_taken() -> None:
    table = {
        "dims": {"H": {"min": 1, "max": 40}, "R": {"min": 1, "max": 9}, "K": {"min": 1, "max": 99}},
        "inputs": {"x": ["H"], "w": ["R"], "y": ["H-R"], "z": ["K"]},
        "constraints": ["K <= H"],
    }
    cases = cases_of(table, count=120)
    differences = {dict(case.dims)["H"] - dict(case.dims)["R"] for case in cases}
    assert min(differences) == 0, "the edge is met"
    assert all(dict(case.dims)["K"] <= dict(case.dims)["H"] for case in cases)


def test_lengths_have_their_sum_by_construction() -> None:
    table = {
        "dims": {"B": [1, 2, 5, 17], "T": [0, 1, 16, 100]},
        "inputs": {
            "lengths": {"dims": ["B"], "dtype": "int32", "kind": "lengths"},
            "starts": {"dims": ["B+1"], "dtype": "int32"},
            "x": ["T"],
        },
        "constraints": ["lengths.sum() == T", "starts == cumsum(lengths)"],
    }
    for case in cases_of(table):
        made, total = materialise(case), dict(case.dims)["T"]
        assert made["lengths"].sum() == total
        assert made["lengths"].min() >= 0
        assert made["starts"].tolist() == [0, *np.cumsum(made["lengths"])]


def test_a_sum_may_have_bounded_parts() -> None:
    table = {
        "dims": {"B": [4], "S": [5]},
        "inputs": {
            "n": {"dims": ["B"], "dtype": "int32", "kind": "lengths", "range": [1, "S"]},
            "x": ["S"],
        },
        "constraints": ["n.sum() == 2*B+3"],
    }
    for case in cases_of(table):
        values = materialise(case)["n"]
        assert values.sum() == 11
        assert values.min() >= 1
        assert values.max() <= 5


@pytest.mark.parametrize("sign", ["<=", "<", ">=", ">", "==", "!="])
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_inputs_compare_as_they_must(sign: str, dtype: str) -> None:
    low, high = (0, 50) if sign == "==" else (10, 40)
    table = {
        "dims": {"N": [1, 30]},
        "inputs": {
            "a": {"dims": ["N"], "dtype": dtype, "range": [0, 50]},
            "b": {"dims": ["N"], "dtype": dtype, "range": [low, high]},
        },
        "constraints": [f"a {sign} b"],
    }
    compare = {"<=": np.less_equal, "<": np.less, ">=": np.greater_equal, ">": np.greater,
               "==": np.equal, "!=": np.not_equal}[sign]  # fmt: skip
    for case in cases_of(table):
        made = materialise(case)
        assert compare(made["a"], made["b"]).all()
        assert made["a"].min() >= 0
        assert made["a"].max() <= 50


X = {"dims": ["N"], "dtype": "int32"}
L8 = {"dims": ["L"], "dtype": "int8"}


@pytest.mark.parametrize(
    ("inputs", "constraints", "path", "slug"),
    [
        ({"x": {**X, "kind": "sorteed"}}, (), ("inputs", "x", "kind"), "schema-kind"),
        ({"x": {**X, "kind": "offsets"}}, (), ("inputs", "x"), "schema-rule-key"),
        ({"x": {**X, "kind": "mask", "to": "N"}}, (), ("inputs", "x", "to"), "schema-rule-key"),
        ({"x": {**X, "to": "N"}}, (), ("inputs", "x", "to"), "schema-rule-key"),
        ({"x": {**X, "share": 0.5}}, (), ("inputs", "x", "share"), "schema-rule-key"),
        ({"x": {**X, "values": []}}, (), ("inputs", "x", "values"), "schema-values"),
        ({"x": {**X, "values": [1], "share": 2}}, (), ("inputs", "x", "share"), "schema-values"),
        ({"x": {**X, "range": [0, "V-1"]}}, (), ("inputs", "x", "range"), "schema-unknown-dim"),
        ({"x": {**X, "range": [0, "N-"]}}, (), ("inputs", "x", "range"), "schema-expression"),
        ({"x": ["2*"]}, (), ("inputs", "x", 0), "schema-expression"),
        ({"x": ["2*Q"]}, (), ("inputs", "x", 0), "schema-unknown-dim"),
        ({"x": {**X, "kind": "indices", "of": "t"}}, (), ("inputs", "x", "of"), "schema-rule-key"),
        ({"x": {**X, "kind": "probabilities"}}, (), ("inputs", "x", "dtype"), "schema-dtype"),
        ({"x": {**X, "kind": "symmetric"}}, (), ("inputs", "x", "dims"), "schema-unsatisfiable"),
        ({"x": X}, ("nonsense",), ("constraints", 0), "schema-constraint"),
        ({"x": X}, ("x.sum() <= N",), ("constraints", 0), "schema-constraint"),
        ({"x": X}, ("y.sum() == N",), ("constraints", 0), "schema-constraint"),
        ({"x": X}, ("x <= N",), ("constraints", 0), "schema-constraint"),
        ({"x": X}, ("N > 100",), ("constraints",), "schema-unsatisfiable"),
        ({"x": X}, ("N <= Q",), ("constraints", 0), "schema-constraint"),
        ({"x": ["N-50"]}, (), ("dims",), "schema-unsatisfiable"),
        (
            {"x": {**X, "range": [5, 9]}, "y": {**X, "range": [0, 3]}},
            ("x <= y",),
            ("constraints", 0),
            "schema-unsatisfiable",
        ),
        ({"x": X, "y": X}, ("x <= y", "y <= x"), ("constraints", 1), "schema-constraint"),
    ],
)  # fmt: skip
def test_wrong_rules_are_reported_where_they_stand(
    inputs: Table, constraints: tuple[str, ...], path: tuple[str | int, ...], slug: str
) -> None:
    table: Table = {"dims": {"N": [1, 2, 30]}, "inputs": inputs}
    if constraints:
        table["constraints"] = list(constraints)
    found = [each for each in faults(table) if each[1] != "schema-unused-dim"]
    assert found == [(path, slug)]


@pytest.mark.parametrize(
    ("inputs", "constraints", "path"),
    [
        ({"x": {**X, "range": [3, "N"]}}, (), ("inputs", "x", "range")),
        ({"x": {**X, "kind": "offsets", "to": "N"}}, (), ("inputs", "x", "dims")),
        ({"x": {**X, "kind": "lengths", "to": "N", "range": [2, 9]}}, (), ("inputs", "x", "range")),
        ({"x": {**X, "kind": "lengths"}, "y": ["Z"]}, ("x.sum() == N*Z",), None),
        (
            {"x": {**X, "kind": "lengths", "to": 2}, "y": ["Z"]},
            ("x.sum() == 3*N",),
            ("inputs", "x"),
        ),
        ({"x": {**X, "kind": "unique", "range": [1, "N-1"]}}, (), ("inputs", "x", "range")),
        ({"x": {**X, "kind": "unique", "range": [1, "N"]}}, (), None),
        ({"x": {**X, "kind": "indices", "of": "y"}, "y": ["Z"]}, (), ("inputs", "x", "of")),
        ({"x": {**L8, "kind": "permutation"}}, (), ("inputs", "x", "dtype")),
        ({"x": {**L8, "kind": "lengths", "to": "L"}}, (), ("inputs", "x", "dtype")),
        ({"x": {"dims": ["Z"], "optional": True}}, (), ("inputs", "x", "optional")),
    ],
)  # fmt: skip
def test_rules_that_nothing_can_keep_are_found(
    inputs: Table, constraints: tuple[str, ...], path: tuple[str | int, ...] | None
) -> None:
    dims = {"N": [1, 2, 30], "Z": [0, 2], "L": {"min": 1, "max": 300}}
    table: Table = {"dims": dims, "inputs": inputs, "constraints": list(constraints)}
    found = [each for each in faults(table) if each[1] != "schema-unused-dim"]
    assert found == ([(path, "schema-unsatisfiable")] if path else [])


def test_scalars_take_each_value_and_both_ends() -> None:
    table = {
        "dims": {"N": [1, 7, 30]},
        "inputs": {"x": ["N"]},
        "scalars": {
            "eps": [1e-6, 0.5],
            "k": {"range": [1, "N"]},
            "flag": [True, False],
            "mode": ["sum", "mean", "max"],
            "scale": {"range": [0.25, 2.0]},
        },
    }
    schema = schema_of(table)
    assert [tensor.name for tensor in schema.inputs] == ["x", *table["scalars"]]
    seen: dict[str, set[Any]] = {name: set() for name in table["scalars"]}
    edges = set()
    for case in cases_of(table, count=40):
        made, size = materialise(case), dict(case.dims)["N"]
        for name, values in seen.items():
            assert made[name].shape == ()
            values.add(made[name].item())
        edges.add("last" if made["k"] == size else "first" if made["k"] == 1 else "")
        assert 1 <= made["k"] <= size
        assert 0.25 <= made["scale"] <= 2.0
    assert (seen["eps"], seen["flag"]) == ({1e-6, 0.5}, {True, False})
    assert (seen["mode"], edges) == ({0, 1, 2}, {"first", "last", ""})
    assert {0.25, 2.0} <= seen["scale"]
    pairs = {
        (case.inputs[1].strategy, case.inputs[3].strategy) for case in cases_of(table, count=24)
    }
    assert len(pairs) == 4, "no two stay in step"


@pytest.mark.parametrize(
    ("scalars", "path", "slug"),
    [
        ({"k": []}, ("scalars", "k"), "schema-values"),
        ({"k": [[1]]}, ("scalars", "k"), "schema-values"),
        ({"k": 3}, ("scalars", "k"), "schema-type"),
        ({"k": {"range": [1, "Q"]}}, ("scalars", "k", "range"), "schema-unknown-dim"),
        ({"k": {"range": [9, "N"]}}, ("scalars", "k", "range"), "schema-unsatisfiable"),
        ({"x": [1]}, ("scalars", "x"), "schema-duplicate"),
        ([1], ("scalars",), "schema-type"),
    ],
)
def test_wrong_scalars_are_reported(scalars: Any, path: tuple[str | int, ...], slug: str) -> None:
    found = faults({"dims": {"N": [3]}, "inputs": {"x": ["N"]}, "scalars": scalars})
    assert (path, slug) in found
    assert len({slug for _, slug in found}) == 1 or slug == "schema-unknown-dim"


def test_an_optional_input_is_absent_now_and_then() -> None:
    table = {"dims": {"N": [3]}, "inputs": {"x": ["N"], "w": {"dims": ["N"], "optional": True}}}
    cases = cases_of(table, count=24)
    shapes = [case.inputs[1].shape for case in cases]
    assert 4 <= shapes.count((0,)) <= 14
    assert set(shapes) == {(0,), (3,)}
    assert all(materialise(case)["w"].shape == case.inputs[1].shape for case in cases)


def test_an_index_without_a_range_gets_a_hint() -> None:
    def slugs(**said: Any) -> list[str]:
        table = {"dims": {"N": [3]}, "inputs": {"row_index": {"dims": ["N"], **said}}}
        return [slug for _, slug in faults(table)]

    assert slugs(dtype="int64") == ["schema-index-without-range"]
    assert slugs(dtype="int64", range=[0, "N-1"]) == []
    assert slugs(dtype="float32") == []


def test_expressions_are_no_python() -> None:
    for text in ("__import__('os')", "N**9", "N if N else 1", "[1]", "N.real", "9" * 600, "(" * 99):
        assert faults({"dims": {"N": [3]}, "inputs": {"x": [text]}}) != []


@pytest.mark.parametrize("kind", KINDS)
def test_strategies_differ(kind: str) -> None:
    said = next(said for name, said, *_ in KEPT if name == kind)
    dtype = next(dtype for name, _, dtype, *_ in KEPT if name == kind)
    schema = parse_schema(table_of(kind, {**said}, dtype), (), lambda *problem: None)
    assert schema is not None
    case = max(
        plan_cases(schema, seed=3, dtype="float32", count=30, strategies=(), layouts=()),
        key=lambda case: (min(case.inputs[0].shape), min(size for _, size in case.dims)),
    )
    seen = {
        input_values(case, type(spec)(**{**vars(spec), "strategy": pattern})).tobytes()
        for spec in case.inputs[:1]
        for pattern in PATTERNS[kind]
    }
    assert len(seen) == len(PATTERNS[kind])


def test_the_limits_of_dtypes_are_kept() -> None:
    assert DTYPES["float16"].itemsize == 2
    for dtype in ("float16", "bfloat16", "float32"):
        table = {"dims": {"N": [64]}, "inputs": {"x": {"dims": ["N"], "kind": "positive"}}}
        for case in cases_of(table, dtype, count=10):
            assert to_float64(materialise(case)["x"]).max() <= float_limits(dtype).max
