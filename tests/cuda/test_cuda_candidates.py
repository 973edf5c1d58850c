"""Candidates that build CUDA by load_inline, from the import to their scores. Needs nvcc."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuemu_flow.lint.toolchain import Tool, find_tools

PROBLEM = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


batch_size = 16
dim = 16384


def get_inputs():
    return [torch.randn(batch_size, dim)]


def get_init_inputs():
    return []
"""
CANDIDATE = '''\
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

__global__ void relu_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    BODY
}

torch::Tensor relu_cuda(torch::Tensor x) {
    const at::cuda::OptionalCUDAGuard guard(device_of(x));
    auto y = torch::empty_like(x);
    int n = x.numel();
    relu_kernel<<<(n + 127) / 128, 128, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
"""
declared = "torch::Tensor relu_cuda(torch::Tensor x);"
relu = load_inline("relu", declared, source, functions=["relu_cuda"], verbose=True)


class ModelNew(nn.Module):
    def forward(self, x):
        return relu.relu_cuda(x)
'''
BODIES = {
    "right": "if (i < n) y[i] = fmaxf(x[i], 0.f);",
    "wrong": "if (i <= n) y[i] = fmaxf(x[i], 0.f);",
    "hangs": "while (i < n && x[i] == x[i]) __threadfence(); if (i < n) y[i] = fmaxf(x[i], 0.f);",
}


@pytest.mark.ci
def test_load_inline_candidates_are_scored(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch is built for CUDA")
    if not isinstance(find_tools().first("nvcc"), Tool):
        pytest.skip("nvcc was not found")
    candidates = tmp_path / "kernelbench" / "candidates"
    candidates.mkdir(parents=True)
    (tmp_path / "kernelbench" / "19_ReLU.py").write_text(PROBLEM)
    for name, body in BODIES.items():
        (candidates / f"{name}.py").write_text(CANDIDATE.replace("BODY", body))
    command = [sys.executable, "-m", "gpuemu_flow"]
    subprocess.run(
        [*command, "import", "kernelbench", "kernelbench", "--into", "work"],
        cwd=tmp_path, capture_output=True, check=True,
    )  # fmt: skip
    config = tmp_path / "work" / "gpuemu.toml"
    config.write_text(config.read_text().replace("[[ops]]", "[[ops]]\ntimeout = 5", 1))
    done = subprocess.run(
        [*command, "score", "--format", "json"], cwd=tmp_path / "work", capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    scores = {one["candidate"]: one for one in json.loads(done.stdout)["scores"]}
    assert {name: one["verdict"] for name, one in scores.items()} == {
        "right": "correct", "wrong": "wrong", "hangs": "not judged",
    }, done.stdout + done.stderr  # fmt: skip
    assert "OutOfBounds" in scores["wrong"]["cause"], scores["wrong"]
    assert "op-timeout" in scores["hangs"]["cause"], scores["hangs"]
    assert done.returncode == 4  # one was not judged
