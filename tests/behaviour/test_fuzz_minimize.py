"""Whatever way an op fails in, its failure is reproduced, kept apart from others, and minimised."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mini_workspace import Mini

SEEDED = False


def fuzz(mini: Mini, *arguments: str, code: int) -> dict[str, Any]:
    done = mini.command("fuzz", "scale", "--minimize", "--format", "json", *arguments, code=code)
    return dict(json.loads(done.stdout))


def record(mini: Mini, failure_id: str) -> dict[str, Any]:
    shown = mini.command("failures", "show", failure_id, "--format", "json").stdout
    return dict(json.loads(shown)["failures"][0])


@pytest.mark.ci
def test_killed_workers_exceptions_and_hangs_are_told_apart_and_minimised(mini: Mini) -> None:
    mini.write(
        "scripts/scale.py",
        """
        import os, signal, time
        import numpy as np

        def scale(x):
            n = x.shape[0]
            if n >= 17:
                os.kill(os.getpid(), signal.SIGKILL)
            if n >= 9:
                raise ValueError(f"size {n}")
            if n >= 5:
                time.sleep(100)
            return (x * np.float32(3)).astype(x.dtype)
        """,
    )
    mini.edit("gpuemu.toml", 'name = "scale"', 'name = "scale"\ntimeout = 1')
    report = fuzz(mini, "-n", "14", "--strategy", "normal", code=3)
    assert report["passed"] > 0
    assert report["passed"] + report["errors"] == 14
    smallest = {}
    for cause in report["causes"]:
        found = record(mini, cause["minimized"])
        smallest[found["message"].split(": ")[1]] = found["shape"]
    assert smallest == {
        "op-crashed": [17],
        "op-exception": [9],
        "op-timeout": [5],
    }


@pytest.mark.ci
def test_a_shrunk_crash_stays_a_crash(mini: Mini) -> None:
    """Smaller cases raise an exception: another failure, though its kind is the same."""
    mini.write(
        "scripts/scale.py",
        """
        import os

        def scale(x):
            if x.shape[0] >= 7:
                os.abort()
            raise ValueError("small")
        """,
    )
    report = fuzz(mini, "-n", "12", code=3)
    found = [record(mini, cause["minimized"]) for cause in report["causes"]]
    by_slug = {failure["message"].split(": ")[1]: failure["shape"] for failure in found}
    assert by_slug == {"op-crashed": [7], "op-exception": [1]}


@pytest.fixture
def forgetful(mini: Mini) -> Mini:
    """An op that gives what it gave before for the same shape, if that is at least 3 long."""
    mini.write(
        "scripts/scale.py",
        """
        import numpy as np

        KEPT = {}

        def scale(x):
            right = (x * np.float32(3)).astype(x.dtype)
            return KEPT.setdefault(x.shape, right) if x.shape[0] >= 3 else right
        """,
    )
    return mini


@pytest.mark.ci
def test_a_failure_that_needs_an_earlier_call_is_reproduced_and_minimised(
    forgetful: Mini,
) -> None:
    report = fuzz(forgetful, "-n", "12", code=1)
    cause = report["causes"][0]
    smallest = record(forgetful, cause["minimized"])
    assert smallest["shape"] == [3]
    assert any("only after a call on other inputs" in note for note in smallest["result"]["notes"])
    for name in (cause["smallest"], cause["minimized"]):
        again = forgetful.command("reproduce", name, code=1).stdout
        assert "still fails" in again
        assert "only after a call on other inputs" in again
    forgetful.edit("scripts/scale.py", ">= 3", ">= 99")
    assert "no longer fails" in forgetful.command("reproduce", cause["minimized"], code=0).stdout
    assert "nothing to minimise" in forgetful.command("minimize", cause["smallest"], code=1).stdout


@pytest.mark.ci
def test_a_failure_between_guard_zones_is_reproduced_and_minimised(mini: Mini) -> None:
    mini.write(
        "scripts/scale.py",
        """
        import numpy as np

        def scale(x):
            whole = -(-x.shape[0] // 8) * 8
            tile = np.lib.stride_tricks.as_strided(x, (whole,), x.strides)
            lost = np.isnan(tile[x.shape[0]:]).any()
            return ((x + lost) * np.float32(3)).astype(x.dtype)
        """,
    )
    report = fuzz(mini, "-n", "6", "--strategy", "normal", "--layout", "contiguous", code=1)
    cause = report["causes"][0]
    assert record(mini, cause["minimized"])["shape"] == [1]
    for name in (cause["smallest"], cause["minimized"]):
        again = mini.command("reproduce", name, code=1).stdout
        assert "only between guard zones" in again


@pytest.mark.ci
def test_the_minimised_case_has_no_sentence_about_the_cases_it_came_from(mini: Mini) -> None:
    mini.edit("gpuemu.toml", "cases = 4\n", 'cases = 4\nstrategies = ["normal"]\n')
    mini.edit("scripts/scale.py", "* 3", "* (3 if len(x) < 7 else 4)")
    report = fuzz(mini, "-n", "40", code=1)
    cause = report["causes"][0]
    assert record(mini, cause["smallest"])["cause"] == cause["feature"] != ""
    assert record(mini, cause["minimized"])["cause"] == ""


@pytest.mark.ci
def test_a_case_that_is_minimal_already_stays_as_it_is(mini: Mini) -> None:
    mini.edit("scripts/scale.py", "* 3", "* (3 if len(x) < 7 else 4)")
    cause = fuzz(mini, "-n", "24", code=1)["causes"][0]
    before = record(mini, cause["minimized"])
    assert before["minimized_from"] == cause["smallest"]
    shown = mini.command("minimize", cause["minimized"], "--format", "json").stdout
    again = json.loads(shown)
    assert (again["steps"], again["one_minimal"]) == (0, True)
    assert again["minimized"]["id"] == cause["minimized"]
    assert record(mini, cause["minimized"]) == before
