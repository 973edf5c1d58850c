"""Triton ops with ``mode = "compiled"`` as a workspace: a bug is found at its line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ci

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


def flow(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", *words], cwd=folder, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def run(folder: Path, *words: str) -> dict[str, Any]:
    done = flow(folder, *(words or ("run",)), "--format", "json")
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


@pytest.mark.ci
def test_programs_of_a_cluster_of_blocks(workspace: Path) -> None:
    text = KERNEL.replace("x.shape[1]))", "x.shape[1]), num_ctas=2)")
    (workspace / "k.py").write_text(text)
    (workspace / "gpuemu.toml").write_text(CONFIG.replace("sm_80", "sm_90"))
    assert [r["verdict"] for r in run(workspace)["results"]] == ["passed"]


def test_bugs_are_planted_in_the_ptx_that_triton_made(workspace: Path) -> None:
    found = run(workspace, "mutate", "softmax")["kernel"]
    names = {killed["name"] for killed in found["killed"]}
    assert any(name.startswith("sum-for-maximum at ") for name in names) or any(
        name.startswith(("mask-off-by-one at k.py:", "stride-changed at k.py:")) for name in names
    ), found
    assert all(killed["cases"] for killed in found["killed"])


def test_other_commands_take_it_as_every_op(workspace: Path) -> None:
    source = workspace / "k.py"
    source.write_text(KERNEL.replace("e / tl.sum(e, 0), mask=cols < n)", "e, mask=cols < n)"))
    fuzzed = flow(workspace, "fuzz", "softmax", "-n", "3")
    assert fuzzed.returncode == 1 and "3 failed" in fuzzed.stdout, fuzzed.stdout + fuzzed.stderr
    (first, *_) = run(workspace, "failures")["failures"]
    again = flow(workspace, "reproduce", str(first["id"]))
    assert again.returncode == 1 and "still fails" in again.stdout
    small = flow(workspace, "minimize", str(first["id"]))
    assert small.returncode == 0 and "minimized" in small.stdout, small.stdout + small.stderr
    source.write_text(KERNEL)
    assert flow(workspace, "reproduce", str(first["id"])).returncode == 0


STEPS = """
import torch
import triton
import triton.language as tl


@triton.jit
def top_kernel(x, top, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + cols, mask=cols < n, other=-float("inf"))
    tl.store(top + row, tl.max(v, 0))


@triton.autotune([triton.Config({"BLOCK": 100}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def scale_kernel(x, by, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + cols, mask=cols < n)
    tl.device_print("column", cols)
    tl.store(out + row * n + cols, v * tl.load(by + row), mask=cols < n)


def softmax(x):
    x = x.contiguous()
    rows, n = x.shape
    top = torch.empty(rows, device=x.device)
    top_kernel[(rows,)](x, top, n, BLOCK=128)
    e = torch.exp(x - top[:, None])  # the host goes on with torch between two launches
    by = 1 / e.sum(1)
    out = torch.empty_like(e)
    scale_kernel[lambda chosen: (rows,)](e, by, out, n)
    return out if WRONG is None else out * WRONG


WRONG = None
"""


def test_several_kernels_with_torch_between_them_and_one_tuned(workspace: Path) -> None:
    source = workspace / "k.py"
    source.write_text(STEPS)
    assert [r["verdict"] for r in run(workspace)["results"]] == ["passed"]
    source.write_text(STEPS.replace("WRONG = None", "WRONG = 1.1"))
    (failure, *_) = run(workspace)["failures"]
    assert failure["kind"] == "ToleranceExceeded"
    (said,) = [note for note in failure["notes"] if note.startswith("printf:")]
    assert "column" in said, "what a kernel prints stands with the case"


TUNED = """
import torch
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})]


@triton.jit
def add(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n, other=0.0) + 1.0, mask=i < n)


@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + i, mask=i < n, other=0.0)))


@triton.jit
def squares(x, out, n, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    a = tl.load(x + c, mask=c < n, other=0.0)
    tl.store(out, tl.sum(a * a, axis=0))


@triton.jit
def spread(x, out, n, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    a = tl.load(x + c, mask=c < n, other=0.0)
    d = tl.where(c < n, a - tl.sum(a, axis=0) / n, 0.0)
    tl.store(out, tl.sum(d * d, axis=0) / n)


@triton.jit
def backwards(x, out, n, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    a = tl.load(x + c, mask=c < n, other=0.0)
    b = tl.load(x + n - 1 - c, mask=c < n, other=0.0)
    tl.store(out, tl.sum(a * b + 0.3 * a, axis=0))


def launch(kernel, *tensors, **tuning):
    n, tuned = tensors[0].numel(), triton.autotune(CONFIGS, ["n"], **tuning)(kernel)
    tuned[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](*tensors, n)
    return tensors[-1]


def in_place(x):
    return launch(add, x.clone())


def in_place_restored(x):
    return launch(add, x.clone(), restore_value=["x"])


def sums(x):
    return launch(total, x.contiguous(), torch.zeros(1, device=x.device))


def sums_reset(x):
    return launch(total, x.contiguous(), torch.zeros(1, device=x.device), reset_to_zero=["out"])


def reduced(kernel, x):
    out = torch.empty(1, device=x.device)
    kernel[(1,)](x.contiguous(), out, x.numel(), BLOCK=128)
    return out


def sum_of_squares(x):
    return reduced(squares, x)


def variance(x):
    return reduced(spread, x)


def dot(x):
    return reduced(backwards, x)
"""
TUNED_REFERENCE = """
def in_place(x):
    return x + 1

def sums(x):
    return x.sum(dtype="f8").reshape(1).astype(x.dtype)

def sum_of_squares(x):
    return (x.astype("f8") ** 2).sum().reshape(1).astype(x.dtype)

def variance(x):
    return x.astype("f8").var().reshape(1).astype(x.dtype)

def dot(x):
    y = x.astype("f8")
    return (y * y[::-1] + 0.3 * y).sum().reshape(1).astype(x.dtype)

in_place_restored, sums_reset = in_place, sums
"""
TUNED_OP = """
[[ops]]
name = "{name}_{mode}"
op = {{ kind = "triton", file = "k.py", function = "{name}"{more} }}
reference = "ref.py:{name}"
dtypes = ["float32"]
strategies = ["normal"]
cases = 2
schema = {{ dims = {{ N = [100] }}, inputs = {{ x = ["N"] }} }}
"""
MODES = {"compiled": ', mode = "compiled", arch = "sm_80"', "interpreted": ""}
RIGHT = {
    "in_place": False, "in_place_restored": True, "sums": False, "sums_reset": True,
    "sum_of_squares": True, "variance": True, "dot": True,
}  # fmt: skip


def test_the_launches_of_an_autotuner_count(tmp_path: Path) -> None:
    """What a kernel adds in place or by atomics, it adds once more for each of them."""
    text = '[project]\nname = "tuned"\n[validation]\ncause_budget = 0\n'
    for name in RIGHT:
        for mode, more in MODES.items():
            text += TUNED_OP.format(name=name, mode=mode, more=more)
    (tmp_path / "gpuemu.toml").write_text(text)
    (tmp_path / "k.py").write_text(TUNED)
    (tmp_path / "ref.py").write_text(TUNED_REFERENCE)
    done = subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", "run", "--format", "json"], cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = {r["op"]: r["verdict"] == "passed" for r in json.loads(done.stdout)["results"]}
    assert found == {f"{n}_{m}": right for n, right in RIGHT.items() for m in MODES}, done.stdout
    assert done.stdout.count("name it in reset_to_zero or restore_value") >= 4
