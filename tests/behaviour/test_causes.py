"""Causes on the command line: one condition, confirmed once, the same in every command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mini_workspace import Mini, make_one_op

from gpuemu_flow.build.session import RunOptions
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz import causes as search
from gpuemu_flow.judge.case_evaluator import CaseEvaluator, EvaluatedCase
from gpuemu_flow.model.types import Case
from gpuemu_flow.report.report import run_and_report

BUG = """
import numpy as np

def scale(x):
    y = (x * np.float32(3)).astype(x.dtype)
    if {wrong}:
        y[..., -1] = 0
    return y
"""


def plant(mini: Mini, wrong: str = "x.shape[-1] > 16") -> Mini:
    mini.keep_only("scale")
    mini.write("scripts/scale.py", BUG.format(wrong=wrong))
    mini.edit("gpuemu.toml", "cases = 4", "cases = 24")
    return mini


def causes(mini: Mini, *options: str) -> list[dict]:
    text = mini.command("run", "scale", "--format", "json", *options, code=1).stdout
    found: list[dict] = next(r for r in json.loads(text)["results"] if r["failed"])["causes"]
    return found


def calls(mini: Mini) -> int:
    path = Path(mini.root / "calls")
    return len(path.read_text()) if path.exists() else 0


def test_a_stated_cause_is_confirmed_by_new_cases_and_the_same_in_every_command(
    mini: Mini,
) -> None:
    plant(mini)
    (first,) = causes(mini)
    assert first["stated"]
    assert [c["sentence"] for c in first["conditions"]] == ["N is above 16"]
    counts = first["counts"]
    assert counts["inside"] == counts["inside_failed"] >= 4
    assert counts["outside"] >= 4 and counts["outside_failed"] == 0
    assert causes(mini) == [first], "from the cache"
    shown = mini.command("run", "scale", code=1).stdout
    assert f"cause: {first['text']}" in shown
    written = json.loads(mini.command("ci", "scale", "--format", "json", code=1).stdout)
    assert first["text"] in {failure["cause"] for failure in written["failures"]}
    known = json.loads(mini.command("report", "--format", "json").stdout)
    assert first["text"] in {failure["cause"] for failure in known["failures"]}


@pytest.mark.ci
def test_a_search_whose_time_was_over_is_gone_on_with(
    mini: Mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow machine: what it did not find is no answer, what it judged is not judged again."""
    workspace = Workspace(plant(mini).root)
    _, report = run_and_report(workspace, RunOptions(jobs=1, words=("scale",)))
    judged: list[Case] = []
    judge = CaseEvaluator.judge

    def counted(self: CaseEvaluator, case: Case, *arguments: Any) -> EvaluatedCase:
        judged.append(case)
        return judge(self, case, *arguments)

    monkeypatch.setattr(CaseEvaluator, "judge", counted)
    times = iter([*[0.0] * 5, *[math.inf] * 99])
    with monkeypatch.context() as slow:
        slow.setattr(search, "time", SimpleNamespace(monotonic=lambda: next(times)))
        stopped = search.with_causes(workspace, report, budget=24)
    assert [r.causes for r in stopped.results] == [()]
    assert len(judged) == 4
    for _ in range(2):
        found = search.with_causes(workspace, report, budget=24)
        (cause,) = (cause for r in found.results for cause in r.causes)
        assert [c.sentence for c in cause.conditions] == ["N is above 16"]
        assert 8 <= len(judged) == len({(c.seed, c.to_text()) for c in judged}) <= 24


@pytest.mark.parametrize(
    "off", ["--no-confirm", pytest.param("cause_budget = 7", marks=pytest.mark.ci)]
)
def test_without_new_cases_nothing_is_stated(mini: Mini, off: str) -> None:
    plant(mini)
    options = [off] if off.startswith("-") else []
    if not options:
        mini.edit("gpuemu.toml", "[validation]", f"[validation]\n{off}")
    assert causes(mini, *options) == []
    shown = mini.command("run", "scale", *options, code=1)
    assert "cause:" not in shown.stdout
    assert "looking for" not in shown.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param("True", id="every case fails", marks=pytest.mark.ci),
        pytest.param(
            "float(np.abs(x).sum()) % 1 < 0.5", id="nothing in common", marks=pytest.mark.ci
        ),
        pytest.param("x.shape[-1] > 16 or (np.abs(x) > 1e3).any()", id="two bugs"),
    ],
)
def test_nothing_is_stated_where_no_condition_separates_the_cases(mini: Mini, wrong: str) -> None:
    plant(mini, wrong)
    assert causes(mini) == []


@pytest.mark.ci
def test_nothing_is_stated_that_no_case_tells_from_something_else(tmp_path: Path) -> None:
    """An input without a negative element is one of zeros, in which nothing can be wrong."""
    mini = make_one_op(
        tmp_path, takes="t, x", op="return (x * (2 + t.any())).astype(x.dtype)",
        reference="return x * 2",
        schema="""
        dims = { N = [8, 16, 40] }
        inputs.t = { dims = ["N"], dtype = "int8", kind = "quantized" }
        inputs.x = { dims = ["N"], kind = "positive" }
        output = ["N"]
        """,
    )  # fmt: skip
    mini.edit("gpuemu.toml", 'cause_budget = 0\nstrategies = ["normal"]', "")
    mini.edit("gpuemu.toml", "cases = 6", "cases = 24")
    (result,) = mini.run(code=1)["results"]
    assert result["failed"] and result["passed"] and not result["causes"]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("wrong", "stated"),
    [
        ("n * m > 16", []),
        ("n * m % 16 != 0", []),
        ("n % 16 != 0", ["N is not a multiple of 16"]),
        ("n > 16", ["N is above 16"]),
    ],
)
def test_of_one_dim_nothing_is_stated_where_a_product_tells(
    tmp_path: Path, wrong: str, stated: list[str]
) -> None:
    mini = make_one_op(
        tmp_path, takes="x", op=f"m, n = x.shape[1:]; return x * (3 if {wrong} else 2)",
        reference="return x * 2",
        schema="""
        dims = { B = { min = 1, max = 3 }, M = [1, 2, 4], N = { min = 2, max = 40 } }
        inputs.x = ["B", "M", "N"]
        output = ["B", "M", "N"]
        """,
    )  # fmt: skip
    mini.edit("gpuemu.toml", 'cause_budget = 0\nstrategies = ["normal"]', "")
    mini.edit("gpuemu.toml", "cases = 6", "cases = 24")
    (result,) = mini.run(code=1)["results"]
    assert [cause["conditions"][0]["sentence"] for cause in result["causes"]] == stated


def test_few_cases_are_run_for_a_cause(mini: Mini) -> None:
    noted = 'open("calls", "a").write(".") and x.shape[-1] > 16'
    plant(mini, noted).unfence()
    causes(mini, "--no-confirm")
    before = calls(mini)
    assert causes(mini)
    assert 8 <= calls(mini) - before <= 12
