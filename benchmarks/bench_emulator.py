"""Speed of the emulator: price of checks, C against numpy, Triton's interpreter, cases at once.

    python benchmarks/bench_emulator.py [--rounds N] [--only PART ...]

Processor times of one process (of all its threads, one of them busy), the least of some rounds,
so that other jobs of the machine count little. The kernels are those of the emulator's tests.
Triton's interpreter is timed where torch and triton are installed, the compiled back end where a
C compiler is on PATH. Exits with 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from gpuemu_flow.emulator.cases import launch_cases
from gpuemu_flow.emulator.launch import (
    BATCH_THREADS,
    Argument,
    BufferArgument,
    Kernel,
    ScalarArgument,
    load_kernel,
)
from gpuemu_flow.emulator.native.compiler import find_compiler

KERNELS = Path(__file__).resolve().parent.parent / "tests" / "emulator_kernels"
CHECKED = (("none", ()), ("mem, init", ("mem", "init")), ("+ sync", ("mem", "init", "sync")),
           ("+ race", ("mem", "init", "sync", "race")))  # fmt: skip


@dataclass
class Bounds:
    """Bounds that were missed."""

    missed: list[str] = field(default_factory=list)

    def check(self, what: str, value: float, most: float) -> str:
        """Note a value above its bound; the bound as text."""
        if value > most:
            self.missed.append(f"{what}: {value:.2f}, bound {most:g}")
        return f"(bound {most:g})"


@dataclass(frozen=True)
class Launch:
    """One kernel with its grid and arguments."""

    name: str
    kernel: Kernel
    grid: Sequence[int]
    block: Sequence[int]
    arguments: Sequence[Argument]
    shared: int = 0

    def run(self, checks: Sequence[str], backend: str) -> Any:
        """Launch it once."""
        return self.kernel.launch(
            self.grid, self.block, self.arguments, shared=self.shared, checks=checks,
            backend=backend,
        )  # fmt: skip


def load(file: str, entry: str = "") -> Kernel:
    """Read one of the test kernels."""
    return load_kernel((KERNELS / file).read_bytes(), file, entry)


def given(*values: Any) -> list[Argument]:
    """Make arguments of arrays, shapes of outputs and numbers."""
    made: list[Argument] = []
    for value in values:
        if isinstance(value, np.ndarray):
            made.append(BufferArgument(value))
        elif isinstance(value, tuple):
            made.append(BufferArgument(np.zeros(value, "f4"), initialised=False))
        elif isinstance(value, bytes):
            made.append(ScalarArgument(value))
        else:
            made.append(ScalarArgument(np.int32(value).tobytes()))
    return made


def least(work: Callable[[], Any], rounds: int) -> float:
    """Least processor time in milliseconds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best * 1000


def launches() -> list[Launch]:
    """The launches of the tables."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(1 << 20).astype("f4")
    s = rng.standard_normal((512, 1000)).astype("f4")
    a = rng.standard_normal((256, 256)).astype("f4")
    n = len(x)
    return [
        Launch("vecadd, 1 M", load("elementwise.ptx", "vecadd"), [n // 128], [128],
               given(x, x, (n,), n)),
        Launch("softmax (512, 1000)", load("matrices.ptx", "softmax_rows"), [512], [256],
               given(s, (512, 1000), 1000)),
        Launch("sgemm 256, tiles in shared memory", load("matrices.ptx", "tiled_matmul"),
               [16, 16], [16, 16], given(a, a, (256, 256), 256, 256, 256)),
        Launch("sgemm 256, in registers", load("matrices.ptx", "register_matmul"), [4, 4], [256],
               given(a, a, (256, 256), 256)),
    ]  # fmt: skip


LIMITS = {
    "vecadd, 1 M": (60.0, 60.0), "softmax (512, 1000)": (60.0, 60.0),
    "sgemm 256, in registers": (1500.0, 200.0),
}  # fmt: skip
"""Milliseconds with all checks, by numpy and by C."""


def price_of_checks(rounds: int, bounds: Bounds) -> None:
    """Print what checks cost, and what C gains."""
    compiled = find_compiler(os.environ) is not None
    print("| ms | " + " | ".join(name for name, _ in CHECKED) + " | C, mem, init | C, + race "
          "| + sync / none | + race / none | C: + race / mem, init |\n"
          + "|---" * 10 + "|")  # fmt: skip
    for launch in launches():
        times = [least(partial(launch.run, checks, "numpy"), rounds) for _, checks in CHECKED]
        fast, dear = ("no compiler", ""), ""
        most, most_c = LIMITS.get(launch.name, (float("inf"),) * 2)
        if compiled:
            took = []
            for checks in (CHECKED[1][1], CHECKED[-1][1]):
                assert launch.run(checks, "c").backend == "c"
                took.append(least(partial(launch.run, checks, "c"), rounds))
            bounds.check(f"{launch.name}, C, all checks", took[1], most_c)
            fast, dear = (f"{took[0]:.1f}", f"{took[1]:.1f}"), f"{took[1] / took[0]:.2f}"
        bounds.check(f"{launch.name}, numpy, all checks", times[-1], most)
        cells = [f"{t:.1f}" for t in times]
        plain, race = times[2] / times[0], times[3] / times[0]
        bounds.check(f"{launch.name}, mem, init and sync", plain, 2)
        bounds.check(f"{launch.name}, race", race, 3)
        print(f"| {launch.name} | {' | '.join(cells)} | {' | '.join(fast)} | {plain:.2f} | "
              f"{race:.2f} | {dear} |")  # fmt: skip


def triton_launches() -> list[tuple[Launch, Callable[[], Any]]]:
    """Launches of compiled Triton kernels, each with the same by Triton's interpreter."""
    os.environ["TRITON_INTERPRET"] = "1"
    import torch  # noqa: PLC0415 - only where it is installed

    sys.path.insert(0, str(KERNELS))
    import triton_kernels  # noqa: PLC0415

    rng = np.random.default_rng(1)
    s = rng.standard_normal((512, 1000)).astype("f4")
    made: list[tuple[Launch, Callable[[], Any]]] = []
    scratch = (bytes(8), bytes(8))

    def softmax() -> Any:
        out = torch.empty((512, 1000))
        triton_kernels.softmax_kernel[(512,)](torch.from_numpy(s), out, 1000, BLOCK=1024)
        return out

    kernel = load("triton_softmax_sm_80.ptx")
    extra = scratch[: len(kernel.parameters) - 3]
    made.append(
        (Launch("softmax (512, 1000)", kernel, [512], [128],
                given(s, (512, 1000), 1000, *extra), 64), softmax)
    )  # fmt: skip
    for kind, dtype in (("fp16", "f2"), ("fp32", "f4")):
        a = rng.standard_normal((256, 256)).astype(dtype)

        def matmul(a: np.ndarray = a) -> Any:
            out = torch.empty((256, 256))
            given_ = torch.from_numpy(a)
            triton_kernels.matmul_kernel[(8, 8)](
                given_, given_, out, 256, 256, 256, BM=32, BN=32, BK=32
            )
            return out

        kernel = load(f"triton_matmul_{kind}_sm_80.ptx")
        extra = scratch[: len(kernel.parameters) - 6]
        made.append(
            (Launch(f"matmul 256, {kind}", kernel, [8, 8], [128],
                    given(a, a, (256, 256), 256, 256, 256, *extra), 65536), matmul)
        )  # fmt: skip
    return made


def against_interpreter(rounds: int, bounds: Bounds) -> None:
    """Print how the emulator compares with Triton's interpreter on the same kernels."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
        print("skipped: Triton's interpreter needs torch and triton")
        return
    print("| ms | Triton's interpreter | numpy, mem, init | faster | C, mem, init | faster |\n"
          "|---|---|---|---|---|---|")  # fmt: skip
    for launch, work in triton_launches():
        expected = work().numpy()
        slow = least(work, rounds)
        numpy_ms = least(partial(launch.run, ("mem", "init"), "numpy"), rounds)
        result = launch.run(("mem", "init"), "c")
        out = next(b for b, a in zip(result.buffers, launch.arguments, strict=True)
                   if isinstance(a, BufferArgument) and not a.initialised)  # fmt: skip
        np.testing.assert_allclose(out, expected, 2e-2, 0.2)
        fast = "no compiler", "", float("inf")
        if result.backend == "c":
            took = least(partial(launch.run, ("mem", "init"), "c"), rounds)
            fast = f"{took:.1f}", f"{slow / took:.1f}", took
        ratio = slow / min(numpy_ms, fast[2])
        if ratio < 5:
            bounds.missed.append(f"{launch.name}: {ratio:.1f} x the interpreter, bound 5")
        print(f"| {launch.name} | {slow:.0f} | {numpy_ms:.1f} | {slow / numpy_ms:.1f} | "
              f"{fast[0]} | {fast[1]} |")  # fmt: skip


def cases_at_once(rounds: int) -> None:
    """Print what a case costs when many are launched at once."""
    print("| ms per case | one by one | 16 at once | faster |\n|---|---|---|---|")
    rng = np.random.default_rng(2)
    many = 16
    softmax = load("matrices.ptx", "softmax_rows")
    matmul = load("matrices.ptx", "tiled_matmul")
    rows = [
        ("softmax (4, 200)", softmax, [4], [128],
         [given(rng.standard_normal((4, 200)).astype("f4"), (4, 200), 200) for _ in range(many)]),
        ("matmul (32, 32, 32)", matmul, [2, 2], [16, 16],
         [given(rng.standard_normal((32, 32)).astype("f4"),
                rng.standard_normal((32, 32)).astype("f4"), (32, 32), 32, 32, 32)
          for _ in range(many)]),
    ]  # fmt: skip
    for name, kernel, grid, block, lists in rows:
        alone = least(
            lambda: [kernel.launch(grid, block, a) for a in lists], rounds  # noqa: B023
        )  # fmt: skip
        assert launch_cases(kernel, grid, block, lists) is not None
        together = least(lambda: launch_cases(kernel, grid, block, lists), rounds)  # noqa: B023
        print(f"| {name} | {alone / many:.2f} | {together / many:.2f} | {alone / together:.1f} |")


def memory_in_flight(bounds: Bounds) -> None:
    """Print the memory per thread in flight, beside the buffers, for growing launches."""
    kernel = load("elementwise.ptx", "vecadd")
    print("| threads | MB beside the buffers | bytes per thread in flight |\n|---|---|---|")
    for n in (1 << 18, 1 << 20, 1 << 22):
        x = np.ones(n, "f4")
        arguments = given(x, x, (n,), n)
        tracemalloc.start()
        kernel.launch([n // 128], [128], arguments, checks=("mem", "init"), backend="numpy")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # Data and shadow of three buffers with guard zones, and the copies that are given back.
        buffers = 3 * (2 * (4 * n + 2 * min(max(4 * n, 1 << 16), 1 << 20)) + 4 * n)
        each = max(0, peak - buffers) / BATCH_THREADS
        bounds.check(f"bytes per thread in flight, {n} threads", each, 1024)
        print(f"| {n:,} | {(peak - buffers) / 1e6:.1f} | {each:.0f} |")


PARTS = ("checks", "triton", "cases", "memory")


def main() -> int:
    """Print all tables; 1 when a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    bounds = Bounds()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n")
    if "checks" in options.only:
        price_of_checks(options.rounds, bounds)
        print()
    if "triton" in options.only:
        against_interpreter(min(2, options.rounds), bounds)
        print()
    if "cases" in options.only:
        cases_at_once(options.rounds)
        print()
    if "memory" in options.only:
        memory_in_flight(bounds)
        print()
    for line in bounds.missed:
        print(f"missed: {line}")
    return 1 if bounds.missed else 0


if __name__ == "__main__":
    sys.exit(main())
