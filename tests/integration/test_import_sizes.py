"""Sizes of KernelBench's problems: how their files write them, and what the verdicts then say."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from import_commands import command
from more_collection_problems import GPU_MODE_ALL

pytestmark = pytest.mark.ci

pytest.importorskip("torch", reason="no torch")

FILE = """
import torch
import torch.nn as nn

class {name}(nn.Module):
    def forward(self, x):
        {statements}
        return {result}

{sizes}

def get_inputs():
    return [torch.rand({shape})]

def get_init_inputs():
    return []
"""
SOFTMAX = "e / e.sum(dim=-1, keepdim=True)"
EXP = "e = torch.exp(x - x.max(dim=-1, keepdim=True).values)"
CAPPED = "e = torch.exp(x[..., :100000] - x.max(dim=-1, keepdim=True).values)"
PADDED = "torch.nn.functional.pad(e / e.sum(-1, keepdim=True), (0, x.shape[-1] - e.shape[-1]))"


def problem(folder: Path, sizes: str, shape: str, **candidates: tuple[str, str]) -> None:
    (folder / "candidates").mkdir(parents=True)
    parts = {"sizes": sizes, "shape": shape}
    text = FILE.format(name="Model", statements="pass", result="torch.softmax(x, -1)", **parts)
    (folder / "1_Softmax.py").write_text(text)
    for name, (statements, result) in candidates.items():
        text = FILE.format(name="ModelNew", statements=statements, result=result, **parts)
        (folder / f"candidates/{name}.py").write_text(text)


@pytest.mark.parametrize(
    ("sizes", "shape", "told"),
    [
        ("batch_size = 4096\nN = 2048 * 192", "batch_size, N", "N 393216 -> "),
        ("batch_size = 4096\nshape = (393216,)", "batch_size, *shape", "shape_0 393216 -> "),
        ("batch, dim = 4096, 3 << 17", "batch, dim", "dim 393216 -> "),
        ("B: int = 2 ** 12\nD = 393216\nshape = (B, D)", "*shape", "D 393216 -> "),
    ],
)
def test_a_block_that_ends_before_the_given_size_is_wrong(
    tmp_path: Path, sizes: str, shape: str, told: str
) -> None:
    problem(tmp_path / "theirs", sizes, shape, right=(EXP, SOFTMAX), capped=(CAPPED, PADDED))
    said = command(tmp_path, "import", "kernelbench", "theirs", "--into", "work")
    assert told in said
    found = json.loads(command(tmp_path / "work", "score", "--no-confirm", "--format", "json"))
    verdicts = {one["candidate"]: (one["verdict"], one["up_to"]) for one in found["scores"]}
    assert verdicts == {"right": ("correct", ""), "capped": ("wrong", "")}


def test_what_no_case_has_is_said_beside_the_verdict(tmp_path: Path) -> None:
    sizes = "rows = 64\ncolumns = 5_000_000"
    problem(tmp_path / "theirs", sizes, "rows, columns", right=(EXP, SOFTMAX))
    command(
        tmp_path, "import", "kernelbench", "theirs", "--into", "work", "--precision", "bf16",
        "--cases", "4",
    )  # fmt: skip
    assert 'dtypes = ["bfloat16"]' in (tmp_path / "work/gpuemu.toml").read_text()
    said = command(tmp_path / "work", "score", "--no-confirm")
    assert "correct" in said
    assert "(the problem has 5,000,000)" in said


def test_gpu_mode_tries_given_sizes_and_says_which_it_does_not(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="no PyYAML")
    GPU_MODE_ALL["fp8-mm"].write(tmp_path / "theirs", "fp8-mm", most=0)  # right alone
    said = command(tmp_path, "import", "gpumode", "theirs", "--into", "work")
    assert "scaled: n 1536 -> 128\n" in said
    assert "k in [112, 128, 256, 7168]" in said  # more than one block of 128
    text = (tmp_path / "work/gpuemu.toml").read_text()
    assert '["m", "cdiv(k, 128)"]' in text
    (one,) = json.loads(command(tmp_path / "work", "score", "--format", "json"))["scores"]
    assert (one["verdict"], one["up_to"]) == (
        "correct", "up to n = 128 (the problem has 1,536)",
    )  # fmt: skip


def children(pid: int) -> list[int]:
    """Return the processes that any thread of a process has started."""
    try:
        texts = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for text in texts for child in text.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_score_that_is_killed_names_each_problem(tmp_path: Path) -> None:
    hangs = "import time; time.sleep(600)"
    problem(tmp_path / "theirs", "N = 32", "N", slow=(hangs, "x"), other=(hangs, "x"))
    command(tmp_path, "import", "kernelbench", "theirs", "--into", "work")
    with subprocess.Popen(
        [sys.executable, "-m", "gpuemu_flow", "score", "--no-confirm", "--format", "json"],
        cwd=tmp_path / "work", stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        while not any(children(child) for child in children(process.pid)):
            assert process.poll() is None  # until its fork server has started a worker
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    found = json.loads(said)
    assert (process.returncode, found["interrupted"]) == (130, True)
    assert {(one["candidate"], one["verdict"]) for one in found["scores"]} == {
        ("slow", "not judged"), ("other", "not judged"),
    }  # fmt: skip
