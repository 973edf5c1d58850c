"""Problems of three collections become workspaces; `score` tells right from wrong.

By default one problem of each with one wrong candidate; ``IMPORT_PROBLEMS=all`` tries all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from collection_problems import GpuMode
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


HALF = """\
import torch
from bench_helper import Deterministic
from task import input_t, output_t
from utils import make_match_reference


def generate_input(size: int, seed: int) -> input_t:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    make = lambda: torch.randn(size, size, device="cuda", dtype=torch.float16, generator=gen)
    return make(), make()


def ref_kernel(data: input_t) -> output_t:
    with Deterministic():
        return torch.softmax(data[0] @ data[1], -1)


check_implementation = make_match_reference(ref_kernel, rtol=1e-5, atol=1e-8)
"""
HELPER = """\
import torch


class Deterministic:
    def __enter__(self):
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *_):
        torch.use_deterministic_algorithms(False)
"""


def test_a_tolerance_is_about_what_the_reference_returns(tmp_path: Path) -> None:
    """In half precision, with a helper module beside the task, and deterministic algorithms."""
    pytest.importorskip("yaml", reason="no PyYAML")
    product = "torch.softmax(data[0] @ data[1], -1)"
    wrong = tuple(product.replace("softmax", word) for word in ("softmin", "log_softmax")) * 2
    problem = GpuMode("size: int", ('"size": 64, "seed": 1',), "", "_", "", product, wrong)
    problem.write(tmp_path / "theirs", "half", most=MOST)
    (tmp_path / "theirs/half/reference.py").write_text(HALF)
    (tmp_path / "theirs/half/bench_helper.py").write_text(HELPER)
    assert "left out" not in scored(tmp_path, "gpumode")
