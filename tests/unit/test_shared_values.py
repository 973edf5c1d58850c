"""Early cases hold values of one input among those of another: comparisons meet equality."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpuemu_flow.cases.generate import input_values, materialise, materialise_each
from gpuemu_flow.cases.op_schema import Dim, OpSchema, TensorDef
from gpuemu_flow.cases.plan import plan_cases
from gpuemu_flow.cases.special_values import SHARING_TURNS
from gpuemu_flow.fuzz.named_case import case_from_text
from gpuemu_flow.model.types import SCALAR, Case, InputSpec, ValueRule

SEEDS = range(1, 4)
DIMS = (Dim("K", min=1, max=64), Dim("M", min=1, max=40), Dim("N", min=1, max=500))
SORTED = ValueRule(kind="sorted")


def schema(*inputs: TensorDef) -> OpSchema:
    used = {dim for tensor in inputs for dim in tensor.dims}
    return OpSchema(tuple(dim for dim in DIMS if dim.name in used), inputs)


def plan(op: OpSchema, seed: int, dtype: str = "float32") -> list[Case]:
    return plan_cases(op, seed=seed, dtype=dtype, count=24, strategies=(), layouts=())


def edges(**said: Any) -> TensorDef:
    return TensorDef("edges", ("K",), rule=SORTED, **said)


def looked_up(**said: Any) -> TensorDef:
    return TensorDef("x", ("M", "N"), **said)


def shares(spec: InputSpec) -> bool:
    return spec.strategy == "normal" and spec.turn in SHARING_TURNS


Wrong = Callable[[dict[str, np.ndarray]], bool]
"""Tells whether the op with `<` for `<=` differs from the right one on some inputs."""


def sides_differ(values: dict[str, np.ndarray]) -> bool:
    left, right = (
        np.searchsorted(values["edges"], values["x"], side) for side in ("left", "right")
    )
    return bool((left != right).any())


def last_edge_differs(values: dict[str, np.ndarray]) -> bool:
    """Count the values of closed bins, and of bins without the last edge."""
    counts = values["edges"][-1:]
    return bool((values["x"] == counts).any())


def member(values: dict[str, np.ndarray]) -> bool:
    return bool(np.isin(values["x"], values["t"]).any())


def elementwise(values: dict[str, np.ndarray]) -> bool:
    return bool((values["x"] == values["t"]).any())


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("inputs", [(edges(), looked_up()), (looked_up(), edges())])
@pytest.mark.parametrize("wrong", [sides_differ, last_edge_differs])
def test_values_are_equal_to_edges(inputs: tuple[TensorDef, ...], wrong: Wrong, dtype: str) -> None:
    for seed in SEEDS:
        found = [wrong(materialise(case)) for case in plan(schema(*inputs), seed, dtype)]
        assert sum(found) >= 2, seed


def test_inputs_of_other_ranges_share_values() -> None:
    other = TensorDef("t", ("M", "N"), low=0.0, high=1.5)
    for seed in SEEDS:
        cases = plan(schema(TensorDef("x", ("M", "N"), low=-1.0, high=2.0), other), seed)
        shared = [materialise(case) for case in cases if shares(case.inputs[1])]
        assert len(shared) == 2
        assert any(elementwise(values) for values in shared)  # one of them may repeat an axis
        for values in shared:
            assert member(values) and ((values["t"] >= 0) & (values["t"] <= 1.5)).all()
            assert (values["x"] != values["t"]).mean() > 0.5


def test_values_are_equal_to_a_threshold() -> None:
    threshold = TensorDef(
        "t", (), dtype="float64", rule=ValueRule(kind=SCALAR, values=(0.5, 1.0, 0.1))
    )
    for seed in SEEDS:
        values = [materialise(case) for case in plan(schema(threshold, looked_up()), seed)]
        assert any(elementwise(each) for each in values)
        with_tenth = [each for each in values if each["t"] == 0.1]
        assert with_tenth and not any(np.float32(0.1) in each["x"] for each in with_tenth)


def test_inputs_that_are_drawn_alike_keep_their_values() -> None:
    """They share values under other strategies, and keep their normal ones."""
    for seed in SEEDS:
        op = schema(looked_up(), TensorDef("t", ("M", "N")))
        cases = plan(op, seed)
        assert not any(shares(spec) for case in cases for spec in case.inputs)
        assert any(member(materialise(case)) for case in cases if case.strategy != "sparse")


@pytest.mark.parametrize(
    "other",
    [
        TensorDef("t", ("K",), rule=ValueRule(kind="mask")),
        TensorDef("t", ("K",), rule=ValueRule(kind="probabilities")),
        TensorDef("t", ("K",), dtype="int32", rule=SORTED),
        TensorDef("t", ("M", "N"), rule=ValueRule(relation=">", other="x")),
    ],
)
def test_other_inputs_lend_nothing(other: TensorDef) -> None:
    for case in plan(schema(looked_up(), other), 3):
        assert not any(shares(spec) for spec in case.inputs)


@pytest.mark.parametrize(
    ("said", "allowed"),
    [
        ({"low": 0.0}, lambda x: np.isnan(x) | (x >= 0)),
        ({"low": 2.0, "high": 3.0}, lambda x: (x >= 2) & (x <= 3)),
        ({"rule": ValueRule(low="M", nonfinite=False)}, np.isfinite),
    ],
)
def test_shared_values_keep_to_the_schema(said: dict[str, Any], allowed: Any) -> None:
    op = schema(edges(), looked_up(**said))
    for seed in SEEDS:
        for case in plan(op, seed):
            values = materialise(case)
            assert allowed(values["x"]).all(), case.to_text()
            assert (np.diff(values["edges"]) >= 0).all()
            if "rule" in said:
                assert (values["x"] >= dict(case.dims)["M"]).all()


def test_three_quarters_stay_as_they_were_drawn() -> None:
    for seed in SEEDS:
        for case in plan(schema(edges(), looked_up()), seed):
            spec = case.inputs[1]
            if shares(spec) and np.prod(spec.shape) >= 400:
                taken = np.isin(input_values(case, spec), input_values(case, case.inputs[0]))
                assert 0.1 < taken.mean() < 0.4


def test_a_case_that_shares_is_read_from_its_text_and_drawn_together() -> None:
    op = schema(edges(), looked_up())
    cases = plan(op, 5)
    for case, made in zip(cases, materialise_each(cases), strict=True):
        read = materialise(case_from_text(op, case.seed, case.to_text()))
        for name, values in materialise(case).items():
            assert values.tobytes() == made[name].tobytes() == read[name].tobytes()
