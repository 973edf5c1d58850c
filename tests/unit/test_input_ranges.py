"""Ranges, values, expressions of dims and relations hold in every case, with both ends met."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from input_tables import cases_of, schema_of

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.cases.plan import DESIGNED, plan_cases
from gpuemu_flow.model.types import ABSENT


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


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_inputs_compare_as_they_must(dtype: str) -> None:
    for sign in ["<=", "<", ">=", ">", "==", "!="]:
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


def test_an_optional_input_is_absent_now_and_then() -> None:
    table = {"dims": {"N": [3]}, "inputs": {"x": ["N"], "w": {"dims": ["N"], "optional": True}}}
    cases = cases_of(table, count=24)
    shapes = [case.inputs[1].shape for case in cases]
    assert 4 <= shapes.count((0,)) <= 14
    assert set(shapes) == {(0,), (3,)}
    assert all(materialise(case)["w"].shape == case.inputs[1].shape for case in cases)


def test_none_takes_no_strategy_and_no_layout_from_an_optional_input() -> None:
    w = {"dims": ["N"], "optional": True}
    table = {"dims": {"N": [3]}, "inputs": {"x": ["N"], "w": w, "y": ["N"]}}
    cases = cases_of(table, count=DESIGNED)
    plain = {**table, "inputs": {"x": ["N"], "w": ["N"], "y": ["N"]}}
    wanted = [case.inputs[1] for case in cases_of(plain, count=DESIGNED)]
    given = [case.inputs[1] for case in cases if case.inputs[1].strategy != ABSENT]
    assert {spec.strategy for spec in given} == {spec.strategy for spec in wanted}
    assert {spec.layout for spec in given} == {spec.layout for spec in wanted}
    alone = [case for case in cases if case.target == "w"]
    assert alone and all(case.inputs[1].strategy != ABSENT for case in alone)
    for count in (3, 4):
        few = cases_of(table, count=count)
        assert any(case.inputs[1].strategy == ABSENT for case in few)
