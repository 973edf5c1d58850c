"""Causes speak of scalars and booleans in words of their own, not of elements and magnitudes."""

from __future__ import annotations

from pathlib import Path

import pytest
from mini_workspace import make_one_op


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("causal", "fails when causal is True"),
        pytest.param(
            "mode != 'sum'",
            "fails when mode is mean or max (not when it is sum)",
            marks=pytest.mark.ci,
        ),
        pytest.param("not causal", "fails when causal is False", marks=pytest.mark.ci),
        pytest.param(
            "k >= 5", "fails when k is 5 or 6 (not when it is 1 or 2)", marks=pytest.mark.ci
        ),
        pytest.param(
            "k <= 2", "fails when k is 1 or 2 (not when it is 5 or 6)", marks=pytest.mark.ci
        ),
    ],
)
def test_the_cause_of_a_scalar(tmp_path: Path, wrong: str, told: str) -> None:
    mini = make_one_op(
        tmp_path,
        takes="x, causal, k, mode",
        op=f"return x * k + ({wrong})",
        reference="return x * k",
        schema="""
        dims = { N = { min = 1, max = 40 } }
        inputs = { x = ["N"] }
        scalars = { causal = [false, true], k = [1, 2, 5, 6], mode = ["sum", "mean", "max"] }
        output = ["N"]
        """,
    )
    mini.edit("gpuemu.toml", "cause_budget = 0\n", "")
    shown = mini.command("fuzz", "it", "-n", "40", code=1).stdout
    assert told in shown, shown
    assert "magnitude" not in shown and "holds" not in shown, shown
