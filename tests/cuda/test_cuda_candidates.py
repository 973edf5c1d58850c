"""Candidates that build CUDA by load_inline, from the import to their scores. Needs nvcc."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
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


HEAD = CANDIDATE.partition("class ModelNew")[0].replace("import torch.nn as nn\n", "")
RUN = "def run(x):\n    return relu.relu_cuda(x)\n"
RUN_ARRAYS = """\
def run(inputs):
    return relu.relu_cuda(torch.from_numpy(inputs["x"]).cuda())
"""
pytestmark = pytest.mark.ci


def scores_in(folder: Path, format_name: str, *, limit: bool = False) -> tuple[int, dict]:
    """Import candidates of a format; return the exit code and the scores of `score`."""
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch is built for CUDA")
    if not isinstance(find_tools().first("nvcc"), Tool):
        pytest.skip("nvcc was not found")
    command = [sys.executable, "-m", "gpuemu_flow"]
    subprocess.run(
        [*command, "import", format_name, "theirs", "--into", "work"],
        cwd=folder, capture_output=True, check=True,
    )  # fmt: skip
    config = folder / "work" / "gpuemu.toml"
    if limit:
        config.write_text(config.read_text().replace("[[ops]]", "[[ops]]\ntimeout = 5", 1))
    done = subprocess.run(
        [*command, "score", "--format", "json"], cwd=folder / "work", capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    return done.returncode, {one["candidate"]: one for one in json.loads(done.stdout)["scores"]}


def test_load_inline_candidates_are_scored(tmp_path: Path) -> None:
    candidates = tmp_path / "theirs" / "candidates"
    candidates.mkdir(parents=True)
    (tmp_path / "theirs" / "19_ReLU.py").write_text(PROBLEM)
    for name, body in BODIES.items():
        (candidates / f"{name}.py").write_text(CANDIDATE.replace("BODY", body))
    code, scores = scores_in(tmp_path, "kernelbench", limit=True)
    assert {name: one["verdict"] for name, one in scores.items()} == {
        "right": "correct", "wrong": "wrong", "hangs": "not judged",
    }, scores  # fmt: skip
    assert "OutOfBounds" in scores["wrong"]["cause"], scores["wrong"]
    assert "op-timeout" in scores["hangs"]["cause"], scores["hangs"]
    assert code == 4  # one was not judged


def write_flashinfer(folder: Path, name: str, source: str) -> None:
    tensor = {"shape": ["M", "N"], "dtype": "float32"}
    definition = {
        "name": "relu", "op_type": "test", "inputs": {"x": tensor}, "outputs": {"y": tensor},
        "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 24}},
        "reference": "import torch\n\n\ndef run(x):\n    return torch.relu(x)\n",
    }  # fmt: skip
    spec = {"language": "python", "entry_point": "main.py::run",
            "destination_passing_style": False}  # fmt: skip
    sources = [{"path": "main.py", "content": source + RUN}]
    solution = {"name": name, "definition": "relu", "spec": spec, "sources": sources}
    (folder / "relu.json").write_text(json.dumps(definition))
    (folder / f"{name}.json").write_text(json.dumps(solution))


def write_corpus(folder: Path, name: str, source: str) -> None:
    place = folder / name
    place.mkdir()
    (folder / "ref.py").write_text("def run(inputs):\n    return inputs['x'].clip(0)\n")
    (place / "kernel.py").write_text(source + RUN_ARRAYS)
    about = {"name": f"relu/{name}", "kernel": "kernel.py", "reference": "ref.py:run"}
    schema = {"dims": [{"name": "N", "candidates": [1, 200]}],
              "inputs": [{"name": "x", "dims": ["N"]}]}  # fmt: skip
    (place / "meta.json").write_text(json.dumps({**about, "op_schema": schema}))


@pytest.mark.parametrize(
    ("format_name", "write"), [("flashinfer-bench", write_flashinfer), ("gpuemu", write_corpus)]
)
def test_other_collections_hold_such_candidates_too(
    tmp_path: Path, format_name: str, write: Callable[[Path, str, str], None]
) -> None:
    (tmp_path / "theirs").mkdir()
    for name in ("right", "wrong"):
        write(tmp_path / "theirs", name, HEAD.replace("BODY", BODIES[name]))
    code, scores = scores_in(tmp_path, format_name)
    assert {name: one["verdict"] for name, one in scores.items()} == {
        "right": "correct", "wrong": "wrong",
    }, scores  # fmt: skip
    assert code == 0
