"""Cost of CUDA programs under ``gpuemu-flow exec``: its start, a vector add, a launch.

    python benchmarks/bench_cuda.py [--rounds N]

Processor times of the command and all processes below it, the least of some rounds, so that other
jobs of the machine count little. Needs nvcc and a C compiler. Exits with 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

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
LAUNCHES = 2000
BOUNDS = {"start": 1.0, "add": 1.0, "launch": 0.0003}


def seconds(program: Path, elements: int, launches: int, backend: str, rounds: int) -> float:
    """Return the processor time of a run of the program."""
    least = float("inf")
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "gpuemu_flow", "exec", "--backend", backend, str(program)]
        subprocess.run(
            [*command, "--", str(elements), str(launches)], check=True, stderr=subprocess.DEVNULL
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        least = min(least, used)
    return least


def main() -> int:
    """Measure, print a table, and return 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "bench.cu"
        program.write_text(PROGRAM)
        seconds(program, 1, 1, "c", 1)  # builds it, and the kernels
        start = seconds(program, 0, 0, "auto", rounds)
        add = seconds(program, 1 << 20, 0, "auto", rounds)
        some = seconds(program, 0, 1, "c", rounds)
        many = seconds(program, 0, LAUNCHES, "c", rounds)
    found = {"start": start, "add": add, "launch": (many - some) / (LAUNCHES - 1)}
    words = {
        "start": "a program without a launch, after its build",
        "add": "a vector add of 1,048,576 elements, after its build",
        "launch": "a launch of 32 threads, compiled",
    }
    missed = 0
    for name, value in found.items():
        missed += value > BOUNDS[name]
        print(f"{words[name]}: {1000 * value:,.2f} ms of CPU (bound {1000 * BOUNDS[name]:g})")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
