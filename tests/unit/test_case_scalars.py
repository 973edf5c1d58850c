"""Scalars and optional inputs take no case from each other: what `test_cases` cannot see."""

from __future__ import annotations

from typing import Any

from input_tables import cases_of, schema_of

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.cases.plan import DESIGNED
from gpuemu_flow.model.types import ABSENT


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
