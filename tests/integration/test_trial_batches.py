"""Cases judged together get the verdicts that they get alone, whatever goes wrong with one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from runner_workspace import Workspace, make_case, marked_case

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.judging.case_evaluator import CaseEvaluator, open_evaluator
from gpuemu_flow.judging.checks import FULL_CHECKS, PLAIN
from gpuemu_flow.judging.evaluated import BatchSize
from gpuemu_flow.judging.params import CompareParams
from gpuemu_flow.judging.subject import Subject
from gpuemu_flow.runners.api import Checks, RunError
from gpuemu_flow.types import BAD, DTYPES, LAYOUTS, Case, CheckResult, Failure, FailureKind, Verdict

REFERENCE = "def reference(x): return x * 2"
EXPLICIT = {name: {"atol": 1e-6, "rtol": 1e-6} for name in DTYPES}


@contextmanager
def evaluator(
    ws: Workspace, op: str, reference: str = REFERENCE, *, auto: bool = False, **more: Any
) -> Iterator[CaseEvaluator]:
    """Trials of two functions; `marked_case` is what sets hostile ones off."""
    compare = {
        "tolerance": "auto" if auto else "explicit",
        "tolerances": {} if auto else EXPLICIT,
        "nan_policy": "match",
        "inf_policy": "match",
        "invariants": [],
        "shape_preserved_input": None,
    }
    subject = Subject(
        "double",
        more.pop("dtype", "float32"),
        ws.program("callable", op, name="op.py", function="op", **more),
        ws.program("callable", reference, name="ref.py", function="reference", **more),
        CompareParams.from_json(compare),
        [make_case(0)],
    )
    with open_evaluator(ws.pool, subject) as opened:
        yield opened


def cases(count: int, *marked: int) -> list[Case]:
    """Cases of several layouts and shapes; those that are marked hold 42 only."""
    shapes = [(3, 4), (5,), (2, 3, 2), (1, 1), (0, 4)]
    return [
        marked_case(n)
        if n in marked
        else make_case(n, shapes[n % len(shapes)], layout=LAYOUTS[n % len(LAYOUTS)])
        for n in range(count)
    ]


def together(opened: CaseEvaluator, given: Sequence[Case]) -> list[CheckResult]:
    return [evaluated.result for evaluated in opened.judge_all(given)]


@pytest.mark.parametrize("auto", [False, True])
def test_verdicts_are_those_of_single_cases(ws: Workspace, auto: bool) -> None:
    op = """
    def op(x):
        out = x * 2
        if x.size > 10:
            out[..., -1] += 1
        return out
    """
    given = cases(20, 7)
    with evaluator(ws, op, auto=auto) as opened:
        batched = together(opened, given)
        alone = [opened.judge(case).result for case in given]
    assert batched == alone
    verdicts = {result.verdict for result in batched}
    assert verdicts == {Verdict.PASSED, Verdict.FAILED, Verdict.INCONCLUSIVE}
    empty = [result.verdict for case, result in zip(given, batched, strict=True) if not case.numel]
    assert set(empty) == {Verdict.INCONCLUSIVE}


TROUBLE = {
    "exception": ("raise ValueError('no')", "op-exception"),
    "exit": ("import os; os._exit(3)", "op-crashed"),
    "kill": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "op-crashed"),
    "hang": ("import time; time.sleep(1000)", "op-timeout"),
    "junk": ("return 'text'", "op-output-missing"),
}


@pytest.mark.long_wait
@pytest.mark.parametrize("name", TROUBLE)
@pytest.mark.parametrize("role", ["op", "reference"])
def test_trouble_costs_its_own_case_only(ws: Workspace, name: str, role: str) -> None:
    deed, slug = TROUBLE[name]
    bad = f"""
    def {role}(x):
        if x.size and (x == 42).all():
            {deed}
        return x * 2
    """
    sources = {"op": "def op(x): return x * 2", "reference": REFERENCE, role: bad}
    timeout = 5 if name == "hang" else 10  # waited for in full, once for each way to find it
    with evaluator(ws, sources["op"], sources["reference"], timeout=timeout) as opened:
        given = cases(7, 3)
        found = together(opened, given)
        after = together(opened, cases(3))
    kind = FailureKind.EXECUTION if role == "op" else FailureKind.REFERENCE
    assert [result.verdict for result in found] == [
        Verdict.ERROR if n == 3 else Verdict.PASSED if case.numel else Verdict.INCONCLUSIVE
        for n, case in enumerate(given)
    ]
    (failure,) = found[3].failures
    assert failure.kind is kind
    assert slug in failure.message
    assert {result.verdict for result in after} == {Verdict.PASSED}


def test_an_op_that_changes_its_inputs_does_not_change_the_reference(ws: Workspace) -> None:
    """The cheat: an input set to zero, so that the reference would agree with a zero output."""
    op = "def op(x):\n    x[...] = 0\n    return x * 2"
    with evaluator(ws, op) as opened:
        found = together(opened, cases(4))
        (alone,) = together(opened, cases(1))
    assert {result.verdict for result in found} == {Verdict.FAILED}
    assert alone.verdict is Verdict.FAILED


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_reference_that_changes_its_inputs_harms_nobody(ws: Workspace, dtype: str) -> None:
    """The op's outputs are judged on the inputs as they were before the reference changed them."""
    reference = "def reference(x):\n    y = x * x + 1\n    x[...] = 0\n    return y"
    given = [make_case(n, (30, 40), dtype) for n in range(4)]
    with evaluator(ws, "def op(x): return x", reference, dtype=dtype) as opened:
        found = [*together(opened, given), opened.judge(given[0]).result]
        found.append(opened.judge_arrays(given[0], materialise(given[0])).result)
    for result in found:
        assert any("the input x, unchanged" in note for note in result.notes), result.notes


@pytest.mark.parametrize("isolation", ["spawn", "warm"])
def test_other_isolations(ws: Workspace, isolation: str) -> None:
    with evaluator(ws, "def op(x): return x * 2", isolation=isolation) as opened:
        found = together(opened, cases(3))
    assert [result.verdict for result in found] == [Verdict.PASSED] * 3


@pytest.mark.parametrize("dtype", ["int32", "bool", "float64", "bfloat16", "float8_e4m3fn"])
def test_dtypes_that_are_not_widened_and_those_that_are(ws: Workspace, dtype: str) -> None:
    given = [make_case(n, (3, 4), dtype) for n in range(4)]
    with evaluator(ws, "def op(x): return x", "def reference(x): return x", dtype=dtype) as opened:
        assert {r.verdict for r in together(opened, given)} == {Verdict.PASSED}


def test_a_reference_for_its_own_dtype_only(ws: Workspace) -> None:
    reference = "def reference(x):\n    assert x.dtype == 'float32'\n    return x * 2"
    with evaluator(ws, "def op(x): return x * 2", reference) as opened:
        assert {r.verdict for r in together(opened, cases(4))} == {Verdict.PASSED}


def test_expected_values_and_inputs_of_a_trial(ws: Workspace) -> None:
    case = make_case(5, (30, 40), layout="transposed")
    with evaluator(ws, "def op(x): return x * 3") as opened:
        evaluated = opened.judge(case)
        x = materialise(case)["x"]
        np.testing.assert_array_equal(evaluated.inputs["x"], x)
        np.testing.assert_array_equal(evaluated.actual["result"], x * 3)
        np.testing.assert_array_equal(evaluated.expected["result"], x.astype(np.float64) * 2)
        prepared = opened.prepare(case)
        assert prepared.dtypes == {"result": "float32"}
        assert prepared.check({"result": x * 2}).verdict is Verdict.PASSED
        assert prepared.check({"result": x * 3}).verdict is Verdict.FAILED
        shifted = opened({"x": x + 1})  # other inputs do not disturb the case that was prepared
        np.testing.assert_array_equal(shifted["result"], (x + 1) * 2)
        assert prepared.check({"result": x * 2}).verdict is Verdict.PASSED


def test_outputs_of_no_known_dtype_are_an_error(ws: Workspace) -> None:
    case = make_case(0)
    with evaluator(ws, "def op(x): return x") as opened:
        inputs = materialise(case)
        found = opened.judge_outputs(case, inputs, {"result": inputs["x"].astype(complex)})
    assert found.verdict is Verdict.ERROR
    assert "complex" in found.failures[0].message


def test_batches_grow_with_speed_and_stay_within_bytes_and_time() -> None:
    size = BatchSize()
    assert size.admits(1, 1 << 40)
    assert not size.admits(2, 8)
    for expected in (2, 4, 8, 16, 32, 64, 128, 128):
        size.took(4, 1e-4)
        assert size.admits(expected, BatchSize.MAX_BYTES)
        assert not size.admits(expected + 1, 8)
    assert not size.admits(2, BatchSize.MAX_BYTES + 1)
    size.took(1, 10.0)
    assert not size.admits(2, 8)


def test_a_reference_that_hangs_while_the_op_still_runs(ws: Workspace) -> None:
    """The question that follows must not set its clock back."""
    op = "import time\ndef op(x):\n    time.sleep(0.2)\n    return x * 2"
    reference = "import time\ndef reference(x):\n    time.sleep(100)\n    return x * 2"
    with evaluator(ws, op, reference, timeout=0.5) as opened:
        found = opened.judge(make_case(0)).result
    assert found.verdict is Verdict.ERROR
    assert "op-timeout" in found.failures[0].message


REFUSALS = {
    "raises": "raise ValueError('no')",
    "exits": "raise SystemExit(3)",
    "ends its process": "import os; os._exit(3)",
    "hangs": "import time; time.sleep(1000)",
}


@pytest.mark.parametrize("refused", ["float64", "float32"])
@pytest.mark.parametrize("deed", REFUSALS)
def test_a_reference_may_refuse_one_of_two_dtypes_in_any_way(
    ws: Workspace, deed: str, refused: str
) -> None:
    """In the end it has given outputs, or the dtypes of its outputs are taken from the case."""
    reference = f"""
    def reference(x):
        if x.dtype == '{refused}':
            {REFUSALS[deed]}
        return x * 2
    """
    with evaluator(ws, "def op(x): return x * 2", reference, timeout=2) as opened:
        found = [opened.judge(make_case(0)).result, *together(opened, cases(2))]
        prepared = opened.prepare(make_case(0))
    assert {result.verdict for result in found} == {Verdict.PASSED}
    assert prepared.dtypes == {"result": "float32"}


def test_an_error_of_the_reference_comes_before_the_ops(ws: Workspace) -> None:
    with evaluator(ws, "def op(x): raise ValueError", "def reference(x): raise KeyError") as opened:
        found = [
            opened.judge(make_case(0)).result,
            opened.judge_error(make_case(0), RunError("op-exception", "ValueError")),
            opened.judge_outputs(make_case(0), materialise(make_case(0)), {"result": np.zeros(1)}),
        ]
    assert {result.failures[0].kind for result in found} == {FailureKind.REFERENCE}


MODIFIED, REFERENCE_FAILED = FailureKind.INPUT_MODIFIED, FailureKind.REFERENCE
DIES = "import os\ndef reference(x):\n    if x.dtype == 'float32': os._exit(7)\n    return x / 3"
RAISES = DIES.replace("os._exit(7)", "raise ValueError")
FINDINGS = [
    # the reference, the op's output, what is told
    ("right", REFERENCE, "x * 2", [MODIFIED]),
    ("refuses", "def reference(x): raise ValueError", "x * 2", [REFERENCE_FAILED]),
    ("ends", "import os\ndef reference(x): os._exit(7)", "x * 2", [REFERENCE_FAILED]),
    ("ends in the probe", DIES.replace("/ 3", "* 2"), "x * 2", [MODIFIED]),
    ("raises in the comparison", RAISES, "x / 2", [MODIFIED, FailureKind.TOLERANCE]),
    ("ends in the comparison", DIES, "x / 2", [MODIFIED, REFERENCE_FAILED]),
    ("op without output", REFERENCE, "'text'", [FailureKind.EXECUTION]),
]
"""Findings about the op's run are told if both programs gave outputs."""


@pytest.mark.parametrize("checks", [PLAIN, FULL_CHECKS], ids=["plain", "full"])
@pytest.mark.parametrize(("reference", "output", "kinds"), [f[1:] for f in FINDINGS],
                         ids=[f[0] for f in FINDINGS])  # fmt: skip
def test_findings_are_told_if_there_are_outputs(
    ws: Workspace, reference: str, output: str, kinds: list[FailureKind], checks: Checks
) -> None:
    op = f"def op(x):\n    y = {output}\n    x[...] = 7\n    return y"
    case = make_case(0)
    inputs = materialise(case)
    outputs = {"result": eval(output, {"x": inputs["x"]})}
    found = Failure(MODIFIED, "seen by the caller")
    with evaluator(ws, op, reference, auto=True) as opened:
        for result in (
            opened.judge(case, checks).result,
            opened.judge_outputs(case, inputs, outputs, [found]),
        ):
            assert [failure.kind for failure in result.failures] == kinds
            assert result.verdict in BAD


def test_bytes_that_are_no_bool_are_the_ops_fault(ws: Workspace) -> None:
    op = "import numpy as np\ndef op(x): return np.full(x.shape, 2, np.uint8).view(bool)"
    with evaluator(ws, op, "def reference(x): return x > 0") as opened:
        case = make_case(0)
        given = {"result": np.full(case.inputs[0].shape, 2, np.uint8).view(bool)}
        found = [opened.judge(case).result, opened.judge_outputs(case, materialise(case), given)]
    for result in found:
        assert result.failures[0].why == "op-output-junk"
        assert result.verdict is Verdict.ERROR


def test_a_reference_may_return_the_same_memory_again(ws: Workspace) -> None:
    reference = """
    import numpy as np

    out = np.zeros(12)

    def reference(x):
        out[:] = (x * 2).reshape(-1)
        return out.reshape(3, 4)
    """
    given = [make_case(n, (3, 4)) for n in range(8)]
    with evaluator(ws, "def op(x): return x * 2", reference) as opened:
        results = together(opened, given)
    assert [result.verdict for result in results] == [Verdict.PASSED] * 8
