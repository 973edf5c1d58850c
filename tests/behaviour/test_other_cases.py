"""Verdicts on other cases are no news: `run`, `diff` and `ci --baseline` after fewer cases."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mini_workspace import Mini

LATER = """
    from common import widen

    calls = 0

    def scale(x):
        return (widen(x) * (3 if len(x) < LIMIT else 2)).astype(x.dtype)
    """


def shapes(mini: Mini) -> list[int]:
    """Return the size of each case of the op, in order."""
    done = mini.command("ci", "scale", "--format", "json", code=None)
    return [case["shapes"]["x"][0] for case in json.loads(done.stdout)["cases"]]


@pytest.fixture
def scale(mini: Mini) -> Mini:
    """One op whose first case always passes; `spoil` breaks a later one."""
    mini.without_causes()
    mini.keep_only("scale")
    mini.edit("gpuemu.toml", "cases = 4", "cases = 8")
    return mini


def spoil(mini: Mini) -> None:
    """Break the op on a case that is larger than the first one."""
    sizes = shapes(mini)
    mini.write("scripts/scale.py", LATER.replace("LIMIT", str(sizes[0] + 1)))
    assert max(sizes) > sizes[0]


def changes(mini: Mini, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = mini.run(*words, code=None)["changes"]
    return found


def test_fewer_cases_make_nothing_better_or_worse(scale: Mini) -> None:
    fewer = ("--cases", "1")
    spoil(scale)
    scale.run(code=1)
    for words, code, now, before in ((fewer, 0, 1, 8), ((), 1, 8, 1)):
        said = scale.command("run", *words, code=code).stdout
        assert "not compared with the last run, judged on other cases: scale float32" in said
        assert "improvement" not in said and "regression" not in said
        scale.run(*(() if words else fewer), code=None)
        (found,) = changes(scale, *words)
        assert (found["what"], found["kind"]) == ("cases", "change")
        assert (found["old"], found["new"]) == (before, now)
    scale.command("run", *fewer)
    assert scale.command("ci", "--fail-on-regression", "--config", "validation.cases=8", code=1)
    assert "regression" not in scale.command("ci", "--fail-on-regression", code=1).stdout


def test_what_fails_on_a_common_case_is_a_regression(scale: Mini) -> None:
    scale.run()
    scale.edit("scripts/scale.py", "* 3", "* 2")
    (found,) = changes(scale, "--cases", "1")
    assert (found["kind"], found["what"]) == ("regression", "case verdict")
    assert (found["old"], found["new"]) == ("passed", "failed")
    scale.edit("scripts/scale.py", "* 2", "* 3")
    (found,) = changes(scale)
    assert (found["kind"], found["what"], found["new"]) == ("improvement", "case verdict", "passed")


def test_one_more_failing_case_is_a_regression(scale: Mini) -> None:
    """The op failed before, too: its verdict is the same, and says nothing of that case."""
    spoil(scale)
    scale.run(code=1)
    text = (scale.root / "scripts/scale.py").read_text()
    scale.write("scripts/scale.py", text.replace("(3 if", "(2 if"))
    said = scale.command("run", code=1).stdout
    assert "regression: scale float32: case verdict passed -> failed" in said


@pytest.mark.parametrize(
    "exported", [False, pytest.param(True, marks=pytest.mark.ci)], ids=["stored", "exported"]
)
def test_a_baseline_is_compared_on_common_cases(exported: bool, scale: Mini) -> None:
    spoil(scale)
    scale.command("baseline", "store", "bad", code=None)
    if exported:
        scale.command("baseline", "export", "bad", "bad.json")
    name = "bad.json" if exported else "bad"
    said = scale.command("ci", "--baseline", name, "--config", "validation.cases=1").stdout
    assert "not compared, judged on other cases: scale float32" in said
    assert "improvement" not in said and "regression:" not in said
    scale.edit("scripts/scale.py", "(3 if", "(2 if")
    worse = ("ci", "--baseline", name, "--config", "validation.cases=1")
    said = scale.command(*worse, code=1).stdout
    assert "regression: scale float32: case verdict passed -> failed against bad" in said


@pytest.mark.ci
def test_diff_names_what_it_did_not_compare(scale: Mini) -> None:
    spoil(scale)
    scale.command("baseline", "store", "bad", code=None)
    scale.edit("gpuemu.toml", "cases = 8", "cases = 1")
    said = scale.command("diff", "bad").stdout
    assert "scale float32: not compared, judged on other cases" in said
    scale.edit("scripts/scale.py", "(3 if", "(2 if")
    said = scale.command("diff", "bad", code=1).stdout
    assert "scale float32: case verdict passed -> failed" in said
