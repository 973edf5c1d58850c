"""Problems of KernelBench become workspaces, in which right candidates are told from wrong ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from import_commands import command

pytestmark = pytest.mark.ci

pytest.importorskip("torch", reason="no torch")

LINEAR = """
import torch
import torch.nn as nn

class {name}(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        return {result}

batch_size = 1024
in_features = 4096
out_features = 2048

def get_inputs():
    return [torch.rand(batch_size, in_features)]

def get_init_inputs():
    return [in_features, out_features]
"""
RIGHT = "torch.clamp(x @ self.linear.weight.T + self.linear.bias, min=0)"
THIEF = """
import io

space = {{}}
exec(io.FileIO({original!r}).read(), space)

class ModelNew(space["Model"]):
    pass

get_inputs, get_init_inputs = space["get_inputs"], space["get_init_inputs"]
"""
"""A candidate that takes the model from the file that was imported."""
RIVALS = {"of_original": "candidates/right.py", "of_copy": "right.py"}
"""Candidates that take their rival's model: from the file that was imported, and from its copy."""
RIVAL = """
import io
import os

here = {folder}
space = {{"__file__": here + "/x.py", "__name__": "taken"}}
exec(io.FileIO(os.path.join(here, {name!r})).read(), space)
class ModelNew(space["ModelNew"]):
    pass
"""
WRONG = {
    "no_bias": "torch.relu(x @ self.linear.weight.T)",
    "no_relu": "self.linear(x)",
    "absolute": "self.linear(x).abs()",
    "half": "torch.relu(self.linear(x).bfloat16().float())",
}


def test_a_right_candidate_is_told_from_four_wrong_ones(tmp_path: Path) -> None:
    theirs, work = tmp_path / "theirs", tmp_path / "work"
    (theirs / "candidates").mkdir(parents=True)
    problem = theirs / "1_Linear_ReLU.py"
    problem.write_text(LINEAR.format(name="Model", result="torch.relu(self.linear(x))"))
    for name, result in {"right": RIGHT, **WRONG}.items():
        path = theirs / "candidates" / f"{name}.py"
        path.write_text(LINEAR.format(name="ModelNew", result=result))
    (theirs / "candidates/thief.py").write_text(THIEF.format(original=str(problem)))
    for name, path in RIVALS.items():
        folder = repr(str(theirs)) if name == "of_original" else "os.path.dirname(__file__)"
        (theirs / f"candidates/{name}.py").write_text(RIVAL.format(folder=folder, name=path))
    before = {path: path.read_bytes() for path in theirs.rglob("*.py")}
    said = command(tmp_path, "import", "kernelbench", "theirs", "--into", "work", "--cases", "6")
    assert (
        "took 1_Linear_ReLU: absolute, half, no_bias, no_relu, of_copy, of_original, right, thief"
        in said
    )
    assert "varied: batch_size in [1, 3, 7" in said
    assert {path: path.read_bytes() for path in theirs.rglob("*.py")} == before
    copy = (work / "problems/1_Linear_ReLU/reference.py").read_bytes()
    assert copy.startswith(before[problem])
    scores = json.loads(command(work, "score", "--no-confirm", "--format", "json"))["scores"]
    verdicts = {one["candidate"]: one["verdict"] for one in scores}
    assert verdicts == {"right": "correct", **dict.fromkeys([*WRONG, *RIVALS, "thief"], "wrong")}
    assert all(one["cause"] for one in scores if one["verdict"] == "wrong")


def test_what_is_not_taken_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "broken.py").write_text("def (")
    (theirs / "raises.py").write_text(
        "raise RuntimeError('no luck')\n"
        + LINEAR.format(name="Model", result="torch.relu(self.linear(x))")
    )
    said = command(tmp_path, "import", "kernelbench", "theirs", "--into", "work", code=4)
    assert "no Python that parses: invalid syntax (broken.py, line 1)" in said
    assert "no luck" in said
    assert not (tmp_path / "work").exists()


def test_a_path_that_is_not_there_is_an_error_with_a_slug(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", "import", "kernelbench", "nowhere"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "import-not-found" in done.stderr) == (2, True)
