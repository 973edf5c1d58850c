"""Hangs: the case that is shown was run and hung, and cases that were not tried are no hangs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from mini_workspace import DOUBLES, Mini, make_doubling

pytestmark = pytest.mark.ci

HANGS = """
import signal


def f(x):
    if x.shape[-1] > 16:
        signal.pause()
    return x * 2
"""


def hanging(folder: Path, *, op: str = HANGS) -> Mini:
    return make_doubling(folder, op, keys="timeout = 1")


def sizes(shapes: dict[str, list[int]]) -> int:
    return shapes["x"][-1]


def test_the_case_shown_was_run_and_hung(tmp_path: Path) -> None:
    mini = hanging(tmp_path)
    report = mini.root / "report.xml"
    done = mini.command("ci", "-o", "report.xml", "-o", "report.md", "-o", "all.json", code=3)
    found = json.loads((mini.root / "all.json").read_text())
    (row,) = found["results"]
    assert row["errors"] == 3 and row["skipped"] > 0, row
    assert row["passed"] + row["errors"] + row["skipped"] == row["cases"] == 12
    told = f"{row['skipped']} of 12 cases were not run"
    assert told in row["reason"] and told in done.stdout
    assert "in 3 cases" in done.stdout
    assert len(found["failures"]) == 3
    assert all(sizes(failure["shapes"]) > 16 for failure in found["failures"])
    tests = list(ElementTree.parse(report).iter("testcase"))
    assert len([test for test in tests if test.find("error") is not None]) == 3
    assert len([test for test in tests if test.find("skipped") is not None]) == row["skipped"]
    assert f"**{row['skipped']}** skipped" in (mini.root / "report.md").read_text()
    listed = json.loads(mini.command("failures", "--format", "json").stdout)["failures"]
    assert len(listed) == 3 and all(sizes(one["shapes"]) > 16 for one in listed)
    assert "still fails" in mini.command("reproduce", listed[0]["id"], code=1).stdout


def test_what_was_not_run_is_run_by_the_next_run(tmp_path: Path) -> None:
    mini = hanging(tmp_path)
    assert mini.run(code=3)["results"][0]["skipped"] > 0
    mini.edit("op.py", "> 16", "> 1000")
    (row,) = mini.run()["results"]
    assert (row["passed"], row["skipped"], row["reason"]) == (12, 0, "")


def test_inputs_that_were_not_made_are_no_hangs(tmp_path: Path) -> None:
    mini = hanging(tmp_path, op=DOUBLES)
    mini.edit(
        "gpuemu.toml", 'x = ["B", "N"]', 'x = { dims = ["B", "N"], generate = "gen.py:make" }'
    )
    mini.write("gen.py", "import signal\n\n\ndef make(shape, rng):\n    signal.pause()\n")
    report = mini.run(code=3)
    (row,) = report["results"]
    assert 0 < row["errors"] <= 3 and row["skipped"] == 12 - row["errors"], row
    for failure in report["failures"]:
        assert failure["kind"] == "GeneratorError" and "generate-failed" in failure["message"]
        assert "no result" in failure["message"], failure


WIDE_HANGS = """
import signal

import numpy as np


def f(x):
    if x.dtype == np.float64 and x.shape[-1] > 16:
        signal.pause()
    return x.astype(np.result_type(x, np.float32)) * 2
"""


def test_output_dtypes_are_found_out_though_a_reference_hangs_in_float64(tmp_path: Path) -> None:
    mini = hanging(tmp_path, op=WIDE_HANGS)
    mini.write("ref.py", WIDE_HANGS)
    mini.edit("gpuemu.toml", "seed = 42", 'seed = 42\ndtypes = ["float16"]')
    # Explicit: `auto` would evaluate the reference in float64.
    mini.edit(
        "gpuemu.toml",
        "timeout = 1",
        "timeout = 1\ntolerances.float16 = { atol = 1e-2, rtol = 1e-2 }",
    )
    (row,) = mini.run()["results"]
    assert (row["passed"], row["skipped"]) == (12, 0), row
