"""Problems of three collections become workspaces; `score` tells right from wrong.

By default one problem of each with one wrong candidate; ``IMPORT_PROBLEMS=all`` tries all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from collection_scores import MOST, chosen, scored
from kernelbench_problems import KERNEL_BENCH
from more_collection_problems import GPU_MODE_ALL, TRACES_ALL

pytestmark = pytest.mark.ci

pytest.importorskip("torch", reason="no torch")
CASES = 12
"""The cases that `import` takes by itself; of 4 none may hold the value above 1 that bugs need."""


def test_problems_of_gpu_mode_are_scored(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="no PyYAML")
    names = chosen(GPU_MODE_ALL, "config")
    for name in names:
        GPU_MODE_ALL[name].write(tmp_path / "theirs", name, most=MOST)
    assert "left out" not in scored(tmp_path, "gpumode", problems=len(names), cases=CASES)


def test_definitions_of_flashinfer_bench_are_scored(tmp_path: Path) -> None:
    names = chosen(TRACES_ALL, "ragged")
    for name in names:
        TRACES_ALL[name].write(tmp_path / "theirs", name, most=MOST)
    assert "left out" not in scored(tmp_path, "flashinfer-bench", problems=len(names), cases=CASES)


def test_problems_of_kernelbench_are_scored(tmp_path: Path) -> None:
    names = chosen(KERNEL_BENCH, "7_Max")
    for name in names:
        KERNEL_BENCH[name].write(tmp_path / "theirs" / name, name, most=MOST)
    assert "left out" not in scored(tmp_path, "kernelbench", problems=len(names), cases=CASES)


def test_twenty_problems_of_each_are_written() -> None:
    assert [len(one) for one in (KERNEL_BENCH, GPU_MODE_ALL, TRACES_ALL)] == [20, 20, 20]
