"""An op that raises the same exception in every case: two workers, and not one for each case."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mini_workspace import make_one_op

pytestmark = pytest.mark.ci

SCHEMA = """
dims = { N = { min = 1, max = 40 } }
inputs = { x = ["N"] }
output = ["N"]
"""
RAISES = """

import os


def raises(x):
    with open({marks!r}, "a") as file:
        file.write(f"{{os.getpid()}}\\n")
    raise RuntimeError("not on this machine")
"""


def test_run_and_fuzz_start_two_workers_for_one_exception(tmp_path: Path) -> None:
    mini = make_one_op(
        tmp_path, takes="x", op="return raises(x)", reference="return x", schema=SCHEMA
    )
    mini.unfence()
    marks, op = tmp_path / "marks", tmp_path / "op.py"
    op.write_text(op.read_text() + RAISES.format(marks=str(marks)))
    for command in (("run",), ("fuzz", "it", "-n", "12")):
        marks.write_text("")
        told = mini.command(*command, "--format", "json", code=3).stdout
        assert told.count("not on this machine") >= 1
        assert json.loads(told)
        assert len(set(marks.read_text().split())) == 2, command
