"""Precision, and references that refuse float64, where real workers run op and reference."""

from __future__ import annotations

from typing import Any

import pytest
from runner_workspace import Workspace, make_case

from gpuemu_flow.judge.case_evaluator import open_evaluator
from gpuemu_flow.judge.subject import CompareParams, Subject
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.types import CheckResult, Verdict

pytestmark = pytest.mark.ci

COMPARE: dict[str, Any] = {
    "tolerance": "auto",
    "tolerances": {},
    "nan_policy": "match",
    "inf_policy": "match",
    "invariants": [],
    "shape_preserved_input": None,
}
SHAPE = (24, 200)
HELPER = """
import numpy as np
def product(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)
"""
SELF_ATTENTION = """
import numpy as np
from helper import product
def reference(x):
    wide = x.astype(np.float64)
    scores = product(wide, wide.T) / wide.shape[1]
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return (product(e / e.sum(-1, keepdims=True), wide)).astype(x.dtype)
"""
CASTS = """
import numpy as np
def op(x):
    wide = x.astype(np.float32)
    scores = wide @ wide.T / np.float32(wide.shape[1])
    e = np.exp(scores - scores.max(-1, keepdims=True))
    narrow = e.astype(x.dtype).astype(np.float32)
    return (narrow @ wide * {scale} / e.sum(-1, keepdims=True)).astype(x.dtype)
"""
TAKES_FLOAT32 = """
import numpy as np
def reference(x):
    if x.dtype != np.float32:
        raise TypeError(f"no {x.dtype}")
    return x @ x.T
"""
CHUNKED = """
import numpy as np
def op(x):
    total = np.zeros((len(x), len(x)), np.float32)
    for start in range(0, x.shape[1], 7):
        part = x[:, start:start + 7]
        total += part @ part.T
    return total * np.float32({scale})
"""


def results(
    ws: Workspace, op: str, reference: str, dtype: str, precision: str = "tensor-core"
) -> list[CheckResult]:
    subject = Subject(
        "tried",
        dtype,
        ws.program("callable", op, name="op.py", function="op"),
        ws.program("callable", reference, name="ref.py", function="reference"),
        convert({**COMPARE, "precision": precision}, CompareParams),
        [make_case(0, SHAPE, dtype=dtype)],
    )
    with open_evaluator(ws.pool, subject) as evaluator:
        return [evaluator.judge(make_case(n, SHAPE, dtype=dtype)).result for n in range(4)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_operands_are_rounded_in_the_reference_and_in_what_it_imports(
    ws: Workspace, dtype: str
) -> None:
    ws.write("helper.py", HELPER)
    right = CASTS.format(scale="1")
    assert {r.verdict for r in results(ws, right, SELF_ATTENTION, dtype)} == {Verdict.PASSED}
    in_float32 = [r.verdict for r in results(ws, right, SELF_ATTENTION, dtype, "float32")]
    assert Verdict.FAILED in in_float32
    wrong = CASTS.format(scale="np.float32(1.05)")
    assert {r.verdict for r in results(ws, wrong, SELF_ATTENTION, dtype)} == {Verdict.FAILED}


def test_a_reference_that_takes_float32_alone_measures_in_float32(ws: Workspace) -> None:
    right = results(ws, CHUNKED.format(scale="1"), TAKES_FLOAT32, "float32")
    assert {r.verdict for r in right} == {Verdict.PASSED}
    assert not any("weak" in note for r in right for note in r.notes)
    wrong = results(ws, CHUNKED.format(scale="1.001"), TAKES_FLOAT32, "float32")
    assert {r.verdict for r in wrong} == {Verdict.FAILED}
