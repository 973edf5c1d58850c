"""Problems of GPU MODE and FlashInfer-Bench become workspaces; `score` tells right from wrong.

By default one problem of each with one wrong candidate; ``IMPORT_PROBLEMS=all`` tries all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from collection_problems import GPU_MODE, TRACES, GpuMode, Trace

pytest.importorskip("torch", reason="no torch")

ALL = os.environ.get("IMPORT_PROBLEMS") == "all"
MOST = 4 if ALL else 1


def chosen(problems: dict[str, GpuMode] | dict[str, Trace], quick: str) -> list[str]:
    return list(problems) if ALL else [quick]


def command(folder: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=850,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def scored(folder: Path, format_name: str) -> None:
    theirs = folder / "theirs"
    before = {path: path.read_bytes() for path in theirs.rglob("*") if path.is_file()}
    told = command(folder, "import", format_name, "theirs", "--into", "work", "--cases", "4")
    assert "left out" not in told
    assert {path: path.read_bytes() for path in theirs.rglob("*") if path.is_file()} == before
    page = command(folder / "work", "score", "--no-confirm", "--format", "html")
    found = json.loads(command(folder / "work", "score", "--no-confirm", "--format", "json"))
    assert len(found["scores"]) == 1 + MOST
    for one in found["scores"]:
        right = one["candidate"].endswith("right")
        assert one["verdict"] == ("correct" if right else "wrong"), one
        assert bool(one["cause"]) is not right
        assert one["candidate"] in page
    assert page.startswith("<!doctype html>")
    assert "<script" not in page


@pytest.mark.parametrize("name", chosen(GPU_MODE, "config"))
def test_a_problem_of_gpu_mode_is_scored(tmp_path: Path, name: str) -> None:
    pytest.importorskip("yaml", reason="no PyYAML")
    GPU_MODE[name].write(tmp_path / "theirs", name, most=MOST)
    scored(tmp_path, "gpumode")


@pytest.mark.parametrize("name", chosen(TRACES, "ragged"))
def test_a_definition_of_flashinfer_bench_is_scored(tmp_path: Path, name: str) -> None:
    TRACES[name].write(tmp_path / "theirs", name, most=MOST)
    scored(tmp_path, "flashinfer-bench")
