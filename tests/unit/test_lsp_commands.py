"""Test the message that an editor shows after a command: success needs something that passed."""

from __future__ import annotations

import json

import pytest

from gpuemu_flow.services.lsp.jobs import REPRODUCE, RUN, outcome


@pytest.mark.parametrize(
    ("verdicts", "good"),
    [
        (["passed", "passed"], True),
        (["passed", "skipped"], True),
        (["skipped"], False),
        (["passed", "inconclusive"], False),
        (["passed", "failed"], False),
        ([], False),
    ],
)
def test_a_run(verdicts: list[str], good: bool) -> None:
    results = [
        {"op": "y", "dtype": "float32", "verdict": verdict, "passed": 1, "cases": 0}
        for verdict in verdicts
    ]
    found = outcome(RUN, "y", json.dumps({"results": results, "problems": []}), "")
    assert found[0] is good
    assert all(verdict in found[1] for verdict in verdicts)


@pytest.mark.parametrize(
    ("verdict", "good", "words"),
    [
        ("passed", True, "no longer fails"),
        ("inconclusive", False, "has no verdict now"),
        ("failed", False, "still fails"),
        ("error", False, "still fails"),
    ],
)
def test_a_failure_that_is_run_again(verdict: str, good: bool, words: str) -> None:
    failures = [{"message": "far off"}] if verdict == "failed" else []
    again = {
        "id": "f1",
        "still_fails": verdict in ("failed", "error"),
        "result": {"verdict": verdict, "failures": failures},
    }
    found = outcome(REPRODUCE, "y", json.dumps(again), "")
    assert found[0] is good
    assert words in found[1]
