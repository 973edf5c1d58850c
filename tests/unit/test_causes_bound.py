"""The search for causes is bounded for a report as a whole, and says what it left out."""

from __future__ import annotations

import time

import pytest

from gpuemu_flow.fuzz.causes import MOST_OPS, ExperimentBudget


def effort(cases: int = MOST_OPS * 40, seconds: float = 1000.0) -> ExperimentBudget:
    return ExperimentBudget(cases, time.monotonic() + seconds)


@pytest.mark.parametrize("made", [effort(cases=0), effort(cases=-3), effort(seconds=-1.0)])
def test_no_more_experiments_once_cases_or_time_are_used_up(made: ExperimentBudget) -> None:
    assert made.over


def test_with_cases_and_time_there_are_more_and_nothing_is_said() -> None:
    made = effort()
    assert not made.over
    assert made.problems() == ()


def test_what_was_left_out_or_cut_is_named() -> None:
    made = effort()
    made.left_out |= {"softmax", "gelu"}
    made.cut.add("matmul")
    left_out, cut = made.problems()
    assert {p.slug for p in (left_out, cut)} == {"causes-cut-short"}
    assert left_out.warning and cut.warning
    assert left_out.message.endswith("gelu, softmax")
    assert "run again" in left_out.hint
    assert cut.message.endswith("matmul")
