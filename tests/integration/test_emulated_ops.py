"""Ops of kind ``ptx``: the commands of every op, findings as failures, mistakes in the launch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parent.parent / "emulator_kernels"

PROGRAM = (
    '{{ kind = "ptx", file = "k.ptx", entry = "softmax_rows", grid = ["B*S"], block = [64], '
    'args = ["x", "out", {{ i32 = "{n}" }}], outputs = {{ out = ["B", "S", "H"] }} }}'
)

CONFIG = (
    """
[[ops]]
name = "softmax"
op = """
    + PROGRAM
    + """
reference = "ref.py:softmax"
input_names = ["x"]
cases = 6
strategies = ["normal"]
[ops.schema]
dims = {{ B = [1, 2], S = [1, 3], H = [5, 130] }}
inputs = {{ x = ["B", "S", "H"] }}
output = ["B", "S", "H"]
"""
)

REFERENCE = """
import numpy as np

def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
"""


def flow(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", *words],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "gpuemu.toml").write_text(CONFIG.format(n="H"))
    (tmp_path / "ref.py").write_text(REFERENCE)
    (tmp_path / "k.ptx").write_text((KERNELS / "matrices.ptx").read_text())
    return tmp_path


def without_barriers(ptx: str, entry: str) -> str:
    """Take the barriers out of one kernel."""
    start = ptx.index(f".entry {entry}(")
    end = ptx.index("\n}", start)
    body = ptx[start:end].replace("bar.sync \t0;", "")
    assert body != ptx[start:end]
    return ptx[:start] + body + ptx[end:]


def test_a_right_kernel_passes_and_is_current_then(workspace: Path) -> None:
    done = flow(workspace, "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout and "6/6" in done.stdout
    again = flow(workspace, "run")
    assert "0 ran" in again.stdout
    fuzzed = flow(workspace, "fuzz", "softmax", "-n", "8")
    assert fuzzed.returncode == 0 and "8 passed" in fuzzed.stdout


def test_a_race_is_a_failure_of_its_own_kind(workspace: Path) -> None:
    ptx = workspace / "k.ptx"
    ptx.write_text(without_barriers(ptx.read_text(), "softmax_rows"))
    done = flow(workspace, "run", "--format", "json")
    assert done.returncode == 1, done.stderr
    assert "DataRace" in done.stdout and "racecheck: matrices.cu:" in done.stdout
    shown = flow(workspace, "failures")
    assert "DataRace" in shown.stdout
    again = flow(workspace, "reproduce", "--op", "softmax")
    assert "racecheck" in flow(workspace, "run").stdout
    assert "Traceback" not in again.stderr


def test_a_read_past_the_end_is_found_by_the_changed_argument_alone(workspace: Path) -> None:
    assert flow(workspace, "run").returncode == 0
    (workspace / "gpuemu.toml").write_text(CONFIG.format(n="H+1"))
    done = flow(workspace, "run")
    assert done.returncode == 1
    assert "OutOfBounds" in done.stdout and "memcheck: matrices.cu:" in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('["B*S"]', '["B**S"]', "where a value must stand"),
        ('["B*S"]', "[]", "one to three sizes"),
        ('{ i32 = "H" }', '{ i31 = "H" }', "no argument type"),
        ('outputs = { out = ["B", "S", "H"] }', "outputs = {}", "no outputs"),
        ('outputs = { out = ["B", "S", "H"] }', 'outputs = { out = "B" }', "no dims"),
    ],
)
def test_a_launch_that_is_no_launch_is_refused_when_read(
    workspace: Path, old: str, new: str, said: str
) -> None:
    text = CONFIG.format(n="H")
    assert old in text
    (workspace / "gpuemu.toml").write_text(text.replace(old, new))
    done = flow(workspace, "run")
    assert done.returncode == 2
    assert "config-launch" in done.stderr and said in done.stderr


@pytest.mark.parametrize(
    ("old", "new", "slug"),
    [
        ('["B*S"]', '["Q"]', "emulator-launch"),
        ('["B*S"]', '["B // (S - S)"]', "emulator-launch"),
        ("[64]", "[4096]", "emulator-launch"),
        ('"softmax_rows"', '"softmax_row"', "emulator-launch"),
        ('"x", "out"', '"x", "y"', "emulator-launch"),
        (', { i32 = "H" }', "", "emulator-argument"),
        ('{ i32 = "H" }', '{ i64 = "H" }', "emulator-argument"),
    ],
)
def test_a_launch_that_cannot_be_is_an_error_of_the_op(
    workspace: Path, old: str, new: str, slug: str
) -> None:
    text = CONFIG.format(n="H")
    assert old in text
    (workspace / "gpuemu.toml").write_text(text.replace(old, new))
    done = flow(workspace, "run")
    assert done.returncode == 3, done.stdout
    assert slug in done.stdout and "Traceback" not in done.stdout + done.stderr


def test_what_cannot_be_run_is_refused_before_anything_runs(workspace: Path) -> None:
    ptx = workspace / "k.ptx"
    text = ptx.read_text()
    start = text.index("{", text.index(".entry softmax_rows("))
    ptx.write_text(text[: start + 1] + "\nmbarrier.init.shared.b64 [0], 1;\n" + text[start + 1 :])
    done = flow(workspace, "run")
    assert done.returncode == 3
    assert "emulator-unsupported" in done.stdout and "mbarrier.init" in done.stdout
