"""``run``, ``status``, ``report``, ``ci`` and the editor say the same, whatever became of an op."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from mini_workspace import Mini

from gpuemu_flow.report.last_results import last_results

OPS = {
    "right": "return x * 2",
    "wrong": "return x * 3",
    "crashes": "raise ValueError('no')",
    "hangs": "import time; time.sleep(60)",
    "empty": "return x[:0]",
    "nowhere": None,
    "unloadable": "return (",
}
REFERENCES = {"empty": "return x[:0]"}
KEYS = {"hangs": "timeout = 1\ncases = 1"}
SAME = ("verdict", "cases", "passed", "failed", "errors", "inconclusive", "skipped", "unjudged")


def workspace(folder: Path, names: tuple[str, ...]) -> Mini:
    mini = Mini(folder)
    config = [
        "[validation]",
        'dtypes = ["float32"]',
        "cases = 3",
        "cause_budget = 0",
        "[execution]",
        "reference_timeout = 5",
    ]
    for name in names:
        body = OPS[name]
        config += ["[[ops]]", f'name = "{name}"', 'input_names = ["x"]', KEYS.get(name, "")]
        config += [f'reference = "{name}_ref.py:reference"', "[ops.schema]"]
        config += ["dims = { N = [4, 5] }", 'inputs = { x = ["N"] }', 'outputs = { y = ["N"] }']
        reference = REFERENCES.get(name, "return x * 2")
        mini.write(f"{name}_ref.py", f"def reference(x):\n    {reference}\n")
        if body is not None:
            config.insert(-4, f'op = "{name}.py:op"')
            mini.write(f"{name}.py", f"def op(x):\n    {body}\n")
    mini.write("gpuemu.toml", "\n".join(config) + "\n")
    return mini


def found(mini: Mini, *command: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(mini.command(*command, "--format", "json", code=None).stdout)
    return shown


def summaries(report: dict[str, Any]) -> dict[tuple[str, str], list[Any]]:
    return {(r["op"], r["dtype"]): [r[name] for name in SAME] for r in report["results"]}


@pytest.mark.parametrize(
    "names", [pytest.param(("nowhere",), marks=pytest.mark.ci), tuple(OPS)], ids="+".join
)
def test_four_commands_agree(tmp_path: Path, names: tuple[str, ...]) -> None:
    mini = workspace(tmp_path / "w", names)
    ran = found(mini, "run")
    told = summaries(ran)
    assert {op for op, _ in told} == set(names)
    report = found(mini, "report")
    assert summaries(report) == told
    assert not any("changed since" in r["reason"] for r in report["results"])
    assert "report-out-of-date" not in {p["slug"] for p in report["problems"]}
    status = found(mini, "status")
    assert status["verdicts"] == Counter(values[0] for values in told.values())
    assert status["outdated"] == 0
    editor = last_results(mini.root.resolve())
    shown = {(r.op, r.dtype): r.verdict.value for rs in editor.results.values() for r in rs}
    assert shown == {key: values[0] for key, values in told.items() if key[0] != "nowhere"}
    assert editor.outdated == set(), "a crash is no change"
    assert summaries(found(mini, "ci")) == told
    assert summaries(found(mini, "report")) == told


def test_an_op_that_passed_and_broke_is_no_longer_said_to_have_passed(tmp_path: Path) -> None:
    mini = workspace(tmp_path / "w", ("right",))
    assert [r["verdict"] for r in found(mini, "run")["results"]] == ["passed"]
    mini.write("right.py", "def op(x):\n    return (\n")
    changed = found(mini, "status")
    assert (changed["verdicts"], changed["outdated"]) == ({"passed": 1}, 1)
    ran = found(mini, "run")
    assert [r["verdict"] for r in ran["results"]] == ["error"]
    assert found(mini, "status")["verdicts"] == {"error": 1}
    editor = last_results(mini.root.resolve())
    assert [r.verdict.value for r in editor.results["right"]] == ["error"]
    assert editor.outdated == set(), "it broke, and nothing changed since"
    assert [r["verdict"] for r in found(mini, "report")["results"]] == ["error"]
    mini.write("right.py", "def op(x):\n    return x * 2\n")
    found(mini, "run")
    assert found(mini, "status")["verdicts"] == {"passed": 1}


def test_what_was_edited_since_is_marked(tmp_path: Path) -> None:
    mini = workspace(tmp_path / "w", ("right", "crashes"))
    found(mini, "run")
    mini.write("right.py", "def op(x):\n    return x + x\n")
    reasons = {r["op"]: r["reason"] for r in found(mini, "report")["results"]}
    assert reasons["right"] == "changed since it was checked"
    assert reasons["crashes"] == ""
    assert found(mini, "status")["outdated"] == 1
    assert last_results(mini.root.resolve()).outdated == {"right"}
