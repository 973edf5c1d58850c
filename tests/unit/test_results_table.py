"""The table of a run shows figures only where outputs were compared."""

from __future__ import annotations

from gpuemu_flow.reports.text import Style, render_results
from gpuemu_flow.results.model import OpResult
from gpuemu_flow.types import Verdict


def columns(result: OpResult) -> str:
    return " ".join(render_results([result], Style())[1].split())


def test_an_op_that_never_gave_outputs_has_no_errors_to_show() -> None:
    result = OpResult("broken", "float32", Verdict.ERROR, cases=3, errors=3, duration_s=0.5)
    assert columns(result) == "broken float32 error 0 of 3 - - - 500 ms run"


def test_an_exact_op_shows_zeros() -> None:
    result = OpResult("copy", "float32", Verdict.PASSED, cases=3, passed=3, duration_s=0.5)
    assert columns(result) == "copy float32 passed 3 of 3 0 0 0 % 500 ms run"


def test_figures_that_were_not_judged_are_never_left_out() -> None:
    """Columns go where the table is wider than 80, but not one that says something."""
    figures = {"max_abs": 1e-7, "max_rel": 2e-5, "duration_s": 0.5}
    judged = OpResult("an_op_of_mine", "float32", Verdict.PASSED, 3, 3, **figures)
    in_part = OpResult("another", "float32", Verdict.PASSED, 3, 3, **figures, unjudged=0.25)
    assert "unjudged" not in render_results([judged], Style())[0]
    lines = render_results([judged, in_part], Style())
    assert "unjudged" in lines[0] and "25.0 %" in lines[2]
    assert max(map(len, lines)) <= 80
