"""The judge of one case: what it evaluates the reference for, and how often."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.judge.judge import Judge
from gpuemu_flow.judge.subject import CompareParams
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.types import Case, InputSpec, Verdict
from gpuemu_flow.numerics.perturb import Arrays

Array = NDArray[Any]

SETTINGS: dict[str, Any] = {
    "tolerance": "auto",
    "tolerances": {},
    "nan_policy": "match",
    "inf_policy": "match",
    "invariants": [],
    "shape_preserved_input": None,
}
CASE = Case(
    0,
    7,
    "float32",
    "contiguous",
    "normal",
    (InputSpec("x", (40, 30), "float32"),),
)


class Reference:
    """Numpy's exponential, counted."""

    has_source = True

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, inputs: Arrays, *, shadow: bool = False) -> dict[str, Array]:
        self.calls += 1
        return {"result": np.exp(np.sin(inputs["x"]) * 3)}


def inputs_of(seed: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).standard_normal((40, 30)).astype(np.float32)}


def with_wrong_elements(outputs: Arrays, factor: float) -> dict[str, Array]:
    wrong = outputs["result"].astype(np.float32)
    wrong[3, :5] *= factor
    return {"result": wrong}


def test_other_outputs_of_the_same_case_cost_no_evaluation() -> None:
    reference = Reference()
    judge = Judge(convert(SETTINGS, CompareParams), {"result": ["float32"]}, [CASE], reference)
    inputs = inputs_of(1)
    expected = reference({"x": inputs["x"].astype(np.float64)})
    first = judge.check(CASE, with_wrong_elements(expected, 1.01), expected, inputs)
    assert first.verdict is Verdict.FAILED
    calls = reference.calls
    assert calls > 10
    for factor in (1.02, 0.9, 1.0):
        again = judge.check(CASE, with_wrong_elements(expected, factor), expected, inputs)
        assert again.verdict is (Verdict.PASSED if factor == 1.0 else Verdict.FAILED)
    assert reference.calls == calls


def test_another_case_is_measured_anew_and_judged_the_same() -> None:
    reference = Reference()
    judge = Judge(convert(SETTINGS, CompareParams), {"result": ["float32"]}, [CASE], reference)
    results = []
    for seed in (1, 2, 1):
        inputs = inputs_of(seed)
        expected = reference({"x": inputs["x"].astype(np.float64)})
        calls = reference.calls
        results.append(judge.check(CASE, with_wrong_elements(expected, 1.01), expected, inputs))
        assert reference.calls > calls
    assert results[0] == results[2]
    assert results[0].stats != results[1].stats


def test_what_is_left_in_an_input_is_compared_if_both_programs_left_something() -> None:
    left = "x after the call"
    settings = convert({**SETTINGS, "tolerance": "table", "mutates": ["x"]}, CompareParams)
    allowed = {"result": ["float32"], left: ["float32"]}

    class Adding(Reference):
        def __call__(self, inputs: Arrays, *, shadow: bool = False) -> dict[str, Array]:
            return {"result": inputs["x"] * 2, left: inputs["x"] + 1}

    judge = Judge(settings, allowed, [CASE], Adding())
    inputs = inputs_of(2)
    right = {"result": inputs["x"] * 2}
    changed, wrong = {left: inputs["x"] + 1}, {left: inputs["x"] + 2}
    for actual, expected, verdict in (
        ({}, {}, Verdict.PASSED),
        ({}, changed, Verdict.PASSED),
        (wrong, {}, Verdict.PASSED),
        (changed, changed, Verdict.PASSED),
        (wrong, changed, Verdict.FAILED),
        ({"result": inputs["x"] * 3}, changed, Verdict.FAILED),
        ({left: inputs["x"]}, changed, Verdict.FAILED),
    ):
        found = judge.check(CASE, {**right, **actual}, {**right, **expected}, inputs)
        assert found.verdict is verdict, (actual.keys(), expected.keys(), found)
