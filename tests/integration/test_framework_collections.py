"""Problems of three collections become workspaces; `score` tells right from wrong.

By default one problem of each with one wrong candidate; ``IMPORT_PROBLEMS=all`` tries all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from collection_scores import MOST, chosen, scored
from kernelbench_problems import KERNEL_BENCH
from more_collection_problems import GPU_MODE_ALL, TRACES_ALL

pytest.importorskip("torch", reason="no torch")


@pytest.mark.parametrize("name", chosen(GPU_MODE_ALL, "config"))
def test_a_problem_of_gpu_mode_is_scored(tmp_path: Path, name: str) -> None:
    pytest.importorskip("yaml", reason="no PyYAML")
    GPU_MODE_ALL[name].write(tmp_path / "theirs", name, most=MOST)
    assert "left out" not in scored(tmp_path, "gpumode")


@pytest.mark.parametrize("name", chosen(TRACES_ALL, "ragged"))
def test_a_definition_of_flashinfer_bench_is_scored(tmp_path: Path, name: str) -> None:
    TRACES_ALL[name].write(tmp_path / "theirs", name, most=MOST)
    assert "left out" not in scored(tmp_path, "flashinfer-bench")


@pytest.mark.parametrize("name", chosen(KERNEL_BENCH, "7_Max"))
def test_a_problem_of_kernelbench_is_scored(tmp_path: Path, name: str) -> None:
    KERNEL_BENCH[name].write(tmp_path / "theirs", name, most=MOST)
    assert "left out" not in scored(tmp_path, "kernelbench")


def test_twenty_problems_of_each_are_written() -> None:
    assert [len(one) for one in (KERNEL_BENCH, GPU_MODE_ALL, TRACES_ALL)] == [20, 20, 20]
