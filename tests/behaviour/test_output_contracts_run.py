"""Contracts in commands: nothing compared, functions of the user's, other forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mini_workspace import Mini, make_one_op

SCHEMA = """
dims = {{ M = [3, 9], N = [5, 16] }}
inputs = {{ x = ["M", "N"], labels = {{ dims = ["M"], dtype = "int32", range = [0, 4] }} }}
outputs = {{ y = {{ {said} }} }}
"""
RIGHT = "return x * 2"


def workspace(
    folder: Path, said: str, op: str = RIGHT, reference: str = RIGHT, keys: str = ""
) -> Mini:
    schema = SCHEMA.format(said=said)
    return make_one_op(
        folder, takes="x, labels", op=op, reference=reference, schema=schema, keys=keys
    )


def result_of(mini: Mini, code: int) -> dict[str, Any]:
    (result,) = mini.run(code=code)["results"]
    return dict(result)


def test_where_no_element_counts_nothing_is_passed(tmp_path: Path) -> None:
    mini = workspace(tmp_path / "w", 'dims = ["M", "N"], only = "labels == 77"')
    result = result_of(mini, 4)
    assert result["verdict"] == "inconclusive" and "nothing was compared" in result["reason"]


def test_only_the_elements_that_count_are_counted(tmp_path: Path) -> None:
    op = "y = np.where(labels[:, None] == 1, x * 2, np.nan).astype(x.dtype); return y"
    mini = workspace(tmp_path / "w", 'dims = ["M", "N"], only = "labels == 1"', op)
    assert result_of(mini, 0)["verdict"] == "passed"
    mini.edit("op.py", "== 1", "== 2")
    told = mini.run(code=1)
    failure = next(f for f in told["failures"] if f["kind"] == "NaNDetected")
    assert failure["index"] is not None and len(failure["index"]) == 2
    mini.command("report", "--format", "html", "--output", "report.html", code=None)
    assert "<html" in (mini.root / "report.html").read_text()[:300]


COMPARE = 'dims = ["M", "N"], compare = "compare.py:same"'


def test_an_edited_function_judges_again_and_runs_nothing_else(tmp_path: Path) -> None:
    mini = workspace(tmp_path / "w", COMPARE)
    mini.write("helper.py", "ALLOWED = 1\n")
    mini.write(
        "compare.py",
        "from helper import ALLOWED\n\n\ndef same(actual, expected, inputs, tolerance):\n"
        '    return [] if ALLOWED else ["no"]\n',
    )
    assert result_of(mini, 0)["verdict"] == "passed"
    assert mini.run()["tasks"]["ran"] == 0
    mini.edit("helper.py", "1", "0")
    told = mini.run(code=1)
    assert told["executed"] == ["compare:it:float32", "diff:it"]
    mini.edit("helper.py", "0", "1")
    assert result_of(mini, 0)["verdict"] == "passed"


def test_an_op_cannot_reach_the_function_that_judges_it(tmp_path: Path) -> None:
    mini = workspace(tmp_path / "w", COMPARE, 'open("compare.py").read(); return x * 2')
    mini.write("compare.py", "def same(actual, expected, inputs, tolerance):\n    return []\n")
    assert result_of(mini, 3)["verdict"] == "error"


@pytest.mark.ci
def test_minimising_and_exporting_know_of_contracts(tmp_path: Path) -> None:
    said = 'dims = ["M"], dtype = "int32", ties = "any", of = "x", axis = "N"'
    op = "i = x.argmax(1).astype(np.int32); i[2:] = 0; return i"
    mini = workspace(tmp_path / "w", said, op, "return x.argmax(1)")
    mini.run(code=1)
    mini.command("fuzz", "-n", "20", "--minimize", code=1)
    (first, *_) = json.loads(mini.command("failures", "--format", "json").stdout)["failures"]
    refused = mini.command("failures", "export", first["id"], "--pytest", code=2)
    assert "export-refused" in refused.stderr


def test_an_op_that_returns_nothing_without_mutates_is_told(tmp_path: Path) -> None:
    mini = workspace(tmp_path / "w", 'dims = ["M", "N"]', "x *= 2")
    assert "op-output-missing" in str(mini.run(code=3)["failures"])


def test_an_op_may_return_some_and_change_others(tmp_path: Path) -> None:
    mini = workspace(
        tmp_path / "w",
        'dims = ["M", "N"]',
        "labels += 1; return x * 2",
        "return x * 2, labels + 1",
        'mutates = ["labels"]',
    )
    mini.edit("gpuemu.toml", 'y = { dims = ["M", "N"] }', 'y = ["M", "N"], labels = ["M"]')
    assert result_of(mini, 0)["verdict"] == "passed"
    mini.edit("op.py", "+= 1", "+= 2")
    assert result_of(mini, 1)["verdict"] == "failed"
