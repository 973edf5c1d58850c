"""Ops of kind ``cuda`` as whole workspaces: built by nvcc, run by the emulator. Skipped without."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from warm import warm_command

from gpuemu_flow.lint.toolchain import Tool, find_tools

pytestmark = pytest.mark.ci

KERNELS = Path(__file__).resolve().parent.parent / "emulator_kernels"

REFERENCE = """
import numpy as np

def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)

def matmul(a, b):
    return a @ b

def transpose(x):
    return np.ascontiguousarray(x.T)

def total(x):
    return x.sum(1)

def histogram(x):
    return np.bincount(x, minlength=256).astype(np.uint32)

def convolution(x, w):
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, 1), (3, 3))
    return (windows * w).sum((2, 3))
"""


@dataclass(frozen=True)
class Example:
    """One kernel as an op, and an edit of its source that a check or the oracle must find."""

    reference: str
    file: str
    entry: str
    launch: str
    outputs: str
    schema: str
    old: str
    new: str
    kind: str
    line: str
    dtype: str = "float32"

    def config(self, where: str) -> str:
        return f"""
[[ops]]
name = "{self.entry}"
op = {{ kind = "cuda", {where}, entry = "{self.entry}", {self.launch}, outputs = {self.outputs} }}
reference = "ref.py:{self.reference}"
dtypes = ["{self.dtype}"]
strategies = ["normal"]
cases = 3
{self.schema}
"""


EXAMPLES = [
    Example(
        "softmax", "matrices.cu", "softmax_rows",
        'grid = ["B"], block = [64], args = ["x", "out", { i32 = "H" }]', '{ out = ["B", "H"] }',
        'schema = { dims = { B = [1, 3], H = [5, 70] }, inputs = { x = ["B", "H"] }, '
        'output = ["B", "H"] }',
        "s[threadIdx.x / 32] = v;\n  __syncthreads();", "s[threadIdx.x / 32] = v;",
        "DataRace", "v = s[0];",
    ),
    Example(
        "matmul", "matrices.cu", "tiled_matmul",
        'grid = ["cdiv(N, 16)", "cdiv(M, 16)"], block = [16, 16], '
        'args = ["a", "b", "c", { i32 = "M" }, { i32 = "N" }, { i32 = "K" }]',
        '{ c = ["M", "N"] }',
        'schema = { dims = { M = [5, 20], N = [7, 18], K = [20, 33] }, '
        'inputs = { a = ["M", "K"], b = ["K", "N"] }, output = ["M", "N"] }',
        "acc += as[threadIdx.y][i] * bs[i][threadIdx.x];\n    __syncthreads();",
        "acc += as[threadIdx.y][i] * bs[i][threadIdx.x];",
        "DataRace", "as[threadIdx.y][threadIdx.x] = row < m",
    ),
    Example(
        "transpose", "matrices.cu", "transpose",
        'grid = ["cdiv(N, 32)", "cdiv(M, 32)"], block = [32, 8], '
        'args = ["x", "out", { i32 = "M" }, { i32 = "N" }]', '{ out = ["N", "M"] }',
        'schema = { dims = { M = [5, 40], N = [7, 33] }, inputs = { x = ["M", "N"] }, '
        'output = ["N", "M"] }',
        "r + k < rows) tile", "r + k <= rows) tile",
        "OutOfBoundsRead", "r + k <= rows) tile",
    ),
    Example(
        "total", "reductions.cu", "block_sum",
        'grid = ["B"], block = [256], args = ["x", "out", { i32 = "H" }]', '{ out = ["B"] }',
        'schema = { dims = { B = [1, 3], H = [5, 300] }, inputs = { x = ["B", "H"] }, '
        'output = ["B"] }',
        "if (t < k) s[t] += s[t + k];\n    __syncthreads();", "if (t < k) s[t] += s[t + k];",
        "DataRace", "if (t < k) s[t] += s[t + k];",
    ),
    Example(
        "histogram", "reductions.cu", "histogram",
        'grid = [2], block = [64], args = ["x", "out", { i32 = "N" }]',
        '{ out = { dims = [256], dtype = "uint32", init = "zero" } }',
        'schema = { dims = { N = [5, 700] }, inputs = { x = ["N"] }, output = [256] }',
        "i < 256; i += blockDim.x) h[i] = 0;", "i < 255; i += blockDim.x) h[i] = 0;",
        "UninitializedRead", "if (h[i]) atomicAdd(&out[i], h[i]);", "uint8",
    ),
    Example(
        "convolution", "matrices.cu", "convolution",
        'grid = ["cdiv(W, 16)", "cdiv(H, 16)"], block = [16, 16], '
        'args = ["x", "w", "out", { i32 = "H" }, { i32 = "W" }]', '{ out = ["H", "W"] }',
        'schema = { dims = { H = [5, 18], W = [7, 17] }, '
        'inputs = { x = ["H", "W"], w = [3, 3] }, output = ["H", "W"] }',
        "w[i * 3 + j];", "w[j * 3 + i];", "ToleranceExceeded", "",
    ),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _needs_nvcc(request: pytest.FixtureRequest) -> None:
    tool = find_tools().first("nvcc")
    if not isinstance(tool, Tool) and "without_nvcc" not in request.node.name:
        pytest.skip(f"{tool.message}: {tool.hint}")


def flow(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return warm_command(words, folder, {**os.environ, **variables})


def run_json(folder: Path) -> dict[str, Any]:
    done = flow(folder, "run", "--format", "json")
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def make(folder: Path, config: str) -> Path:
    (folder / "k").mkdir()
    (folder / "gpuemu.toml").write_text('[project]\nname = "cuda"\n' + config)
    (folder / "ref.py").write_text(REFERENCE)
    for name in ("matrices.cu", "reductions.cu"):
        (folder / "k" / name).write_text((KERNELS / name).read_text())
    return folder


@pytest.mark.ci
def test_kernels_of_two_builds_pass(tmp_path: Path) -> None:
    tables = "".join(
        f'[[kernels]]\nname = "{name}"\nsource = "k/{name}.cu"\narch = "sm_80"\n'
        "[kernels.artifact_checks]\nmax_local_memory_bytes = 4096\nmax_registers = 255\n"
        for name in ("matrices", "reductions")
    )
    ops = "".join(e.config(f'kernel = "{Path(e.file).stem}"') for e in EXAMPLES)
    report = run_json(make(tmp_path, ops + tables))
    assert {r["op"]: r["verdict"] for r in report["results"]} == {
        e.entry: "passed" for e in EXAMPLES
    }
    assert {k["kernel"] for k in report["kernels"]} == {"matrices", "reductions"}
    again = run_json(tmp_path)
    assert again["executed"] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.entry)
@pytest.mark.ci
def test_a_planted_bug_is_found_at_its_line(example: Example, tmp_path: Path) -> None:
    folder = make(tmp_path, example.config(f'file = "k/{example.file}", flags = ["-Ik"]'))
    source = folder / "k" / example.file
    before = source.read_text()
    assert before.count(example.old) == 1
    text = before.replace(example.old, example.new)
    source.write_text(text)
    done = flow(folder, "ci", "-o", "ci.json", "-o", "ci.sarif")
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((folder / "ci.json").read_text())
    (first, *_) = report["failures"]
    assert first["kind"] == example.kind, first
    if example.line:
        wanted = next(n for n, t in enumerate(text.splitlines(), 1) if example.line in t)
        lines = {f["place"]["line"] for f in first["findings"]}
        assert wanted in lines, first["findings"]
        assert first["file"] == f"k/{example.file}"
        sarif = json.loads((folder / "ci.sarif").read_text())
        places = [
            r["locations"][0]["physicalLocation"]
            for r in sarif["runs"][0]["results"]
            if r["ruleId"] == f"validation/{example.kind}"
        ]
        assert places[0]["artifactLocation"]["uri"] == f"k/{example.file}"
        assert places[0]["region"]["startLine"] in lines


@pytest.fixture
def softmax(tmp_path: Path) -> Path:
    return make(tmp_path, EXAMPLES[0].config('file = "k/matrices.cu", arch = "sm_80"'))


@pytest.mark.ci
def test_a_comment_runs_no_op_again_and_moves_the_lines(softmax: Path) -> None:
    source, example = softmax / "k/matrices.cu", EXAMPLES[0]
    assert run_json(softmax)["results"][0]["verdict"] == "passed"
    source.write_text("// a comment\n\n" + source.read_text())
    executed = set(run_json(softmax)["executed"])
    assert {"build:softmax_rows:sm_80", "code:softmax_rows:sm_80"} <= executed
    assert not [name for name in executed if name.startswith(("op:", "compare:", "reference:"))]
    source.write_text(source.read_text().replace(example.old, example.new))
    (failure, *_) = run_json(softmax)["failures"]
    line = failure["findings"][0]["place"]["line"]
    assert f"matrices.cu:{line} ld.shared" in failure["message"]
    source.write_text("// another comment\n" + source.read_text())
    report = run_json(softmax)
    assert not [name for name in report["executed"] if name.startswith(("op:", "compare:"))]
    assert report["failures"][0]["findings"][0]["place"]["line"] == line + 1
    assert f"matrices.cu:{line + 1} ld.shared" in report["failures"][0]["message"]


@pytest.mark.ci
def test_other_commands_build_what_they_run(softmax: Path) -> None:
    source, example = softmax / "k/matrices.cu", EXAMPLES[0]
    fuzzed = flow(softmax, "fuzz", "softmax_rows", "-n", "3")
    assert fuzzed.returncode == 0 and "3 passed" in fuzzed.stdout, fuzzed.stdout + fuzzed.stderr
    source.write_text(source.read_text().replace(example.old, example.new))
    broken = flow(softmax, "fuzz", "softmax_rows", "-n", "3", "--format", "json")
    assert broken.returncode == 1 and "DataRace" in broken.stdout
    listed = json.loads(flow(softmax, "failures", "--format", "json").stdout)
    name = str(next(iter(listed["failures"]))["id"])
    again = flow(softmax, "reproduce", name)
    assert again.returncode == 1 and "still fails" in again.stdout, again.stdout + again.stderr
    small = flow(softmax, "minimize", name)
    assert "racecheck" in small.stdout or "DataRace" in small.stdout, small.stdout + small.stderr
    source.write_text(source.read_text().replace(example.new, example.old))
    mended = flow(softmax, "reproduce", name)
    assert mended.returncode == 0, mended.stdout + mended.stderr
    planted = flow(softmax, "mutate", "softmax_rows")
    assert planted.returncode == 0 and "planted bugs found" in planted.stdout


@pytest.mark.ci
def test_an_error_of_the_compiler_is_told_once_and_by_line(softmax: Path) -> None:
    source = softmax / "k/matrices.cu"
    source.write_text(source.read_text().replace("v = s[0];", "v = s[0]"))
    done = flow(softmax, "run")
    assert done.returncode == 3 and "kernel-not-built" in done.stderr + done.stdout
    fuzzed = flow(softmax, "fuzz", "softmax_rows", "-n", "2")
    assert fuzzed.returncode == 3 and "k/matrices.cu:" in fuzzed.stderr


def test_without_nvcc_the_op_is_skipped_and_counted(tmp_path: Path) -> None:
    folder = make(tmp_path, EXAMPLES[0].config('file = "k/matrices.cu"'))
    empty = tmp_path / "bin"
    empty.mkdir()
    done = flow(folder, "run", PATH=str(empty))
    # An nvcc of the environment is found without PATH, and then lacks a host compiler.
    if "passed" in done.stdout or "host compiler" in done.stdout:
        pytest.skip("an nvcc is installed as a package of this interpreter")
    assert done.returncode == 4 and "skipped" in done.stdout and "nvcc" in done.stdout
    job = flow(folder, "ci", PATH=str(empty))
    assert "nvcc was not found" in job.stdout.splitlines()[0]
    strict = flow(folder, "ci", "--require-all", PATH=str(empty))
    assert strict.returncode == 4
    fuzzed = flow(folder, "fuzz", "softmax_rows", PATH=str(empty))
    assert fuzzed.returncode == 2 and "op-skipped" in fuzzed.stderr


@pytest.mark.parametrize(
    ("where", "slug"),
    [
        ('kernel = "nothing"', "unknown-kernel"),
        ('file = "k/matrices.cu", kernel = "x"', "config-conflict"),
        ('file = "ref.py"', "config-value"),
        ('file = "k/none.cu"', "config-path-missing"),
        ('arch = "sm_80"', "config-missing-key"),
    ],
)
def test_what_names_no_source_is_refused_when_read(tmp_path: Path, where: str, slug: str) -> None:
    folder = make(tmp_path, EXAMPLES[0].config(where))
    done = flow(folder, "run")
    assert done.returncode == 2 and slug in done.stderr
