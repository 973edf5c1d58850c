"""Triton ops with ``mode = "compiled"`` as a workspace: a bug is found at its line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + cols, mask=cols < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * n + cols, e / tl.sum(e, 0), mask=cols < n)


def softmax(x):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    x = x.contiguous()
    kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
"""

CONFIG = """
[project]
name = "compiled"

[validation]
cause_budget = 0

[[ops]]
name = "softmax"
op = { kind = "triton", file = "k.py", function = "softmax", mode = "compiled", arch = "sm_80" }
reference = "ref.py:softmax"
strategies = ["normal"]
cases = 4
schema = { dims = { B = [1, 3], H = [5, 70] }, inputs = { x = ["B", "H"] }, output = ["B", "H"] }
"""

REFERENCE = """
import numpy as np

def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "gpuemu.toml").write_text(CONFIG)
    (tmp_path / "k.py").write_text(KERNEL)
    (tmp_path / "ref.py").write_text(REFERENCE)
    return tmp_path


def run(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", "run", "--format", "json"], cwd=folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def test_it_passes_is_current_and_a_bug_is_found_at_its_line(workspace: Path) -> None:
    assert [r["verdict"] for r in run(workspace)["results"]] == ["passed"]
    assert run(workspace)["executed"] == []
    source = workspace / "k.py"
    text = KERNEL.replace("e / tl.sum(e, 0), mask=cols < n)", "e / tl.sum(e, 0), mask=cols <= n)")
    source.write_text(text)
    (failure, *_) = run(workspace)["failures"]
    assert failure["kind"] == "OutOfBoundsWrite"
    line = next(n for n, t in enumerate(text.splitlines(), 1) if "cols <= n" in t)
    place = failure["findings"][0]["place"]
    assert (place["file"], place["line"]) == ("k.py", line)
