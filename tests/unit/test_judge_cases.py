"""Cases judged together get the verdicts of `judge_case`, whatever is declared of their outputs."""

from __future__ import annotations

import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.judge.judge import Judge
from gpuemu_flow.judge.judge_service import Ran, judge_case, judge_cases
from gpuemu_flow.judge.subject import CompareParams
from gpuemu_flow.model.errors import Problem, RunnerError
from gpuemu_flow.model.types import Case, CheckResult, Verdict
from gpuemu_flow.numerics.contract import OutputContract

TOLERANCES = {"float32": {"atol": 1e-6, "rtol": 1e-4}}
DIMS = ("B", "N")


def a_judge(*contracts: OutputContract) -> Judge:
    def evaluate(inputs: object, **_: object) -> dict[str, np.ndarray]:
        raise AssertionError("an explicit tolerance asks for nothing")

    dims = {"x": ["B", "N"]} if contracts else {}
    settings = CompareParams("table", TOLERANCES, outputs=contracts, input_dims=dims)
    return Judge(settings, {"y": ["float32"]}, (), evaluate)


def ran(number: int, shape: tuple[int, ...] = (4, 16), *, error: float = 0.0) -> Ran:
    rng = np.random.default_rng(number)
    x = rng.standard_normal((4, 16)).astype(np.float32)
    expected = x.astype(np.float64).reshape(shape) * 3
    actual = (expected + error).astype(np.float32)
    case = Case(number, number, "float32", "contiguous", "normal", (), dims=(("B", 4), ("N", 16)))
    return Ran(case, {"y": actual}, {"y": expected}, {"x": x})


CONTRACTS = [
    (),
    (OutputContract("y", DIMS),),
    (OutputContract("y", DIMS, "same as x"),),
    (OutputContract("y", DIMS, "float64"),),
    (OutputContract("y", DIMS, low=-3.0, high=3.0),),
    (OutputContract("y", DIMS, atol=0.5),),
    (OutputContract("y", ("N", "B")),),
    (OutputContract("y", ("B", "?")),),
]


@for_each("contracts", CONTRACTS)
def test_verdicts_together_are_those_alone(contracts: tuple[OutputContract, ...]) -> None:
    judge = a_judge(*contracts)
    cases = [ran(n, error=0.1 * (n % 5 == 2)) for n in range(12)]
    cases += [ran(n, (16, 4)) for n in range(12, 18)]
    together = judge_cases(judge, cases)
    alone = [
        judge_case(a_judge(*contracts), one.case, one.actual, one.expected, one.inputs)
        for one in cases
    ]
    assert [repr(one) for one in together] == [repr(one) for one in alone]


@pytest.mark.parametrize(
    ("contract", "shared"),
    [
        (OutputContract("y", DIMS), True),
        (OutputContract("y", DIMS, "float32"), True),
        (OutputContract("y", DIMS, low=0.0), False),
        (OutputContract("y", DIMS, ties="x", axis=0), False),
    ],
)
def test_what_is_declared_of_a_form_alone_does_not_keep_cases_apart(
    contract: OutputContract, shared: bool
) -> None:
    assert (a_judge(contract).shared_policy("float32") is not None) is shared


def test_equal_shapes_that_are_not_the_declared_one_are_an_error() -> None:
    judge = a_judge(OutputContract("y", DIMS))
    results = judge_cases(judge, [ran(n, (16, 4)) for n in range(5)])
    assert [one.verdict for one in results] == [Verdict.ERROR] * 5


@pytest.mark.parametrize(
    ("raised", "why", "told"),
    [
        (RunnerError(Problem("reference-failed", "no")), "reference-failed", "the reference: "),
        (
            TypeError("no"),
            "comparison-failed",
            "the comparison itself failed: TypeError: no (",
        ),
    ],
)
def test_a_fault_of_the_comparison_is_not_held_against_the_reference(
    raised: Exception, why: str, told: str
) -> None:
    class Broken(Judge):
        def check(self, *_: object, **__: object) -> CheckResult:
            raise raised

    one = ran(1)
    judge = Broken(CompareParams("table", TOLERANCES), {}, (), a_judge)  # type: ignore[arg-type]
    result = judge_case(judge, one.case, one.actual, one.expected, one.inputs)
    assert result.verdict is Verdict.ERROR
    assert result.failures[0].why == why
    assert result.failures[0].message.startswith(told)
