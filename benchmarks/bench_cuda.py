"""Cost of CUDA programs under ``gpuemu-flow exec``, and of extensions of PyTorch as ops.

    python benchmarks/bench_cuda.py [--rounds N] [--whole]

Processor times of the command and all processes below it, the least of some rounds, so that other
jobs of the machine count little. Needs nvcc and a C compiler, for extensions a CPU torch, too.
``--whole`` compiles the extension without gpuemu-flow as well, which takes two minutes. Exits with
1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpuemu_flow.emulator.host.build import cxx_compiler
from gpuemu_flow.emulator.host.torch_device import make_home

try:
    import torch
except ImportError:
    torch = None

PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <vector>
__global__ void add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
__global__ void step(int* x, int v) { x[threadIdx.x] += v; }
int main(int argc, char** argv) {
  int n = atoi(argv[1]), launches = atoi(argv[2]);
  std::vector<float> a(n + 1, 1.5f);
  float *x, *y, *z;
  int* w;
  cudaMalloc(&x, n * 4 + 4); cudaMalloc(&y, n * 4 + 4);
  cudaMalloc(&z, n * 4 + 4); cudaMalloc(&w, 128);
  cudaMemcpy(x, a.data(), n * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(y, a.data(), n * 4, cudaMemcpyHostToDevice);
  cudaMemset(w, 0, 128);
  if (n) add<<<(n + 255) / 256, 256>>>(x, y, z, n);
  for (int i = 0; i < launches; i++) step<<<1, 32>>>(w, i + 1);
  cudaMemcpy(a.data(), z, n * 4, cudaMemcpyDeviceToHost);
  return n && a[n - 1] != 3;
}
"""
CUDA = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
__global__ void relu_kernel(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = fmaxf(x[i], 0.f);
}
torch::Tensor relu(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
  auto y = torch::empty_like(x);
  int n = x.numel();
  auto stream = at::cuda::getCurrentCUDAStream();
  relu_kernel<<<(n + 255) / 256, 256, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
  return y;
}
"""
CPP = """
#include <torch/extension.h>
torch::Tensor relu(torch::Tensor x);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("relu", torch::wrap_pybind_function(relu), "relu");
}
"""
OP = """\
from torch.utils.cpp_extension import load_inline

ext = load_inline("relu", "torch::Tensor relu(torch::Tensor x);", CUDA, functions=["relu"])


def relu(x):
    return ext.relu(x)
"""
WORKSPACE = {
    "gpuemu.toml": """\
[project]
name = "bench"
[validation]
dtypes = ["float32"]
layouts = ["contiguous"]
strategies = ["normal"]
[[ops]]
name = "relu"
op = "relu.py:relu"
reference = "reference.py:relu"
schema = { inputs = { x = ["B", "N"] }, dims = { B = [1, 16], N = [1, 33, 64] } }
""",
    "reference.py": "import torch\n\n\ndef relu(x):\n    return torch.relu(x)\n",
}
LAUNCHES, CASES = 2000, 40
BOUNDS = {
    "start": 1.0, "add": 1.0, "launch": 0.0003, "build": 25.0, "again": 8.0, "case": 0.1,
    "ratio": 1.3,
}  # fmt: skip
WORDS = {
    "start": "a program without a launch, after its build",
    "add": "a vector add of 1,048,576 elements, after its build",
    "launch": "a launch of 32 threads, compiled",
    "build": "the build of an extension by load_inline",
    "again": "a run of one case whose extension is built, start included",
    "case": "a case of an extension at small sizes, judged",
    "ratio": "that build, as a share of nvcc's and c++'s alone",
}


def used(command: list[str], folder: Path | None = None) -> float:
    """Return the processor time of a command and of what it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command, check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def seconds(program: Path, elements: int, launches: int, backend: str, rounds: int) -> float:
    """Return the processor time of a run of the program."""
    command = [sys.executable, "-m", "gpuemu_flow", "exec", "--backend", backend, str(program)]
    return min(used([*command, "--", str(elements), str(launches)]) for _ in range(rounds))


def programs(rounds: int) -> dict[str, float]:
    """Measure programs with a main."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "bench.cu"
        program.write_text(PROGRAM)
        seconds(program, 1, 1, "c", 1)  # builds it, and the kernels
        some = seconds(program, 0, 1, "c", rounds)
        many = seconds(program, 0, LAUNCHES, "c", rounds)
        return {
            "start": seconds(program, 0, 0, "auto", rounds),
            "add": seconds(program, 1 << 20, 0, "auto", rounds),
            "launch": (many - some) / (LAUNCHES - 1),
        }


def extensions(rounds: int, *, whole: bool) -> Iterator[tuple[str, float]]:
    """Measure an extension as an op, and its compilers alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cuda = f"// {time.time_ns()}: built anew\n{CUDA}"
        (folder / "relu.py").write_text(f"CUDA = {cuda!r}\n{OP}")
        for file, text in WORKSPACE.items():
            (folder / file).write_text(text)

        def fuzz(count: int) -> float:
            command = [sys.executable, "-m", "gpuemu_flow", "fuzz", "relu", "--force"]
            return used([*command, "-n", str(count)], folder)

        home = make_home(Path(torch.__file__).parent)  # PyTorch's device, once
        first = fuzz(1)
        again = min(fuzz(1) for _ in range(rounds))
        yield "build", first - again
        yield "again", again
        yield "case", (min(fuzz(1 + CASES) for _ in range(rounds)) - again) / CASES
        if whole:
            (folder / "alone.cu").write_text(cuda)
            (folder / "alone.cpp").write_text(CPP)
            inside = Path(torch.__file__).parent / "include"
            folders = (
                inside, inside / "torch" / "csrc" / "api" / "include", home.folder / "include",
                sysconfig.get_paths()["include"],
            )  # fmt: skip
            flags = ["-std=c++20", "-DTORCH_EXTENSION_NAME=relu", "-c", "-o", "alone.o"]
            flags += [word for place in folders for word in ("-isystem", str(place))]
            pic = ["-Xcompiler", "-fPIC", "-gencode=arch=compute_80,code=sm_80"]
            alone = used([home.toolkit.nvcc, *flags, *pic, "alone.cu"], folder)
            alone += used([cxx_compiler(), *flags, "-fPIC", "alone.cpp"], folder)
            yield "ratio", (first - again) / alone


def measured(rounds: int, *, whole: bool) -> Iterator[tuple[str, float]]:
    """Yield each figure when it is known."""
    yield from programs(rounds).items()
    if torch is not None and torch.version.cuda is None:
        yield from extensions(min(rounds, 2), whole=whole)


def main() -> int:
    """Measure, print a table, and return 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--whole", action="store_true")
    given = parser.parse_args()
    missed = 0
    if torch is None or torch.version.cuda is not None:
        print("no CPU build of torch: extensions are left out")
    for name, value in measured(given.rounds, whole=given.whole):
        missed += value > BOUNDS[name]
        shown = f"{value:.2f}" if name == "ratio" else f"{1000 * value:,.2f} ms of CPU"
        bound = BOUNDS[name] * (1 if name == "ratio" else 1000)
        print(f"{WORDS[name]}: {shown} (bound {bound:g})", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
