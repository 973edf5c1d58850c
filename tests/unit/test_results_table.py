"""The table of a run shows figures only where outputs were compared."""

from __future__ import annotations

from gpuemu_flow.reports.text import Style, render_results
from gpuemu_flow.results.model import OpResult
from gpuemu_flow.types import Verdict


def columns(result: OpResult) -> str:
    return " ".join(render_results([result], Style())[1].split())


def test_an_op_that_never_gave_outputs_has_no_errors_to_show() -> None:
    result = OpResult("broken", "float32", Verdict.ERROR, cases=3, errors=3, duration_s=0.5)
    assert columns(result) == "broken float32 error 0/3 - - - - - 500 ms run"


def test_an_exact_op_shows_zeros() -> None:
    result = OpResult("copy", "float32", Verdict.PASSED, cases=3, passed=3, duration_s=0.5)
    assert columns(result) == "copy float32 passed 3/3 0 0 0 0 % 0 % 500 ms run"
