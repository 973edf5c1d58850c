"""A reference that gives other outputs when it is evaluated again is named, and not the op."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mini_workspace import Mini, make_one_op

pytestmark = pytest.mark.ci

SCHEMA = """
dims = { B = [1, 3], N = { min = 1, max = 90 } }
inputs = { x = ["B", "N"] }
output = ["B", "N"]
"""
STATEFUL = """
n = 0


def reference(x):
    global n
    n += 1
    return x * 2 + (n % 3 == 0)
"""
RANDOM = """
import numpy as np


def reference(x):
    return x * 2 + np.random.random(x.shape)
"""


def made(folder: Path, reference: str, op: str = "return x * 2") -> Mini:
    mini = make_one_op(folder, takes="x", op=op, reference="return x * 2", schema=SCHEMA)
    mini.write("reference.py", reference)
    mini.edit("gpuemu.toml", "cases = 6", "cases = 12")
    return mini


@pytest.mark.parametrize("reference", [STATEFUL, RANDOM], ids=["stateful", "random"])
@pytest.mark.parametrize("command", [("run",), ("fuzz", "it", "-n", "20")], ids=["run", "fuzz"])
def test_the_reference_is_named(tmp_path: Path, reference: str, command: tuple[str, ...]) -> None:
    mini = made(tmp_path, reference)
    found = json.loads(mini.command(*command, "--format", "json", code=3).stdout)
    assert {failure["kind"] for failure in found["failures"]} == {"ReferenceError"}
    shown = mini.command(*command, code=3).stdout
    assert "the reference, evaluated twice on the same inputs, gives" in shown
    assert "ToleranceExceeded" not in shown


def test_a_steady_reference_is_not_blamed_for_a_wrong_op(tmp_path: Path) -> None:
    op = "return x * 2 + (x.shape[1] > 40)"
    mini = made(tmp_path, "def reference(x):\n    return x * 2\n", op)
    found = mini.run(code=1)
    assert {failure["kind"] for failure in found["failures"]} == {"ToleranceExceeded"}
