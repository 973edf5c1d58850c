"""Speed of reading and linting PTX, as MB/s and as ratios to splitting the same text into lines.

    python benchmarks/bench_ptx.py [--megabytes N] [--file FILE ...]

The corpus is the committed PTX of ``scripts/kernels``, repeated as modules of one file. The ratio
to a plain regular-expression split of the same bytes, taken in the same run, is what compares
between machines.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from gpuemu_flow.lint.kernel import KernelPolicy
from gpuemu_flow.lint.measure import Artifact, Linter, measure
from gpuemu_flow.lint.ptx.parser import read_body, read_ptx

KERNELS = Path(__file__).resolve().parent.parent / "scripts" / "kernels"
_LINES = re.compile(rb"[^\n]*\n")
_REPEATS = 3


def corpus(files: list[Path], megabytes: float) -> bytes:
    """At least `megabytes` MB of PTX, whole files one after the other."""
    texts = [path.read_bytes() for path in files]
    pieces: list[bytes] = []
    size = 0
    while size < megabytes * 1e6:
        for text in texts:
            pieces.append(text)
            size += len(text) + 1
    return b"\n".join(pieces)


def split_lines(data: bytes) -> int:
    """The yardstick: one regular-expression match per line, each taken as bytes."""
    return sum(1 for line in _LINES.finditer(data) if line.group())


def parse(data: bytes) -> int:
    """Read everything: modules, functions and all statements."""
    return sum(len(read_body(function).instructions) for function in read_ptx(data).functions())


def lint(data: bytes) -> int:
    """Read, measure (with liveness) and apply all rules."""
    linter = Linter(KernelPolicy())
    return sum(len(linter.lint(view).violations) for view in measure(Artifact("x", data)).kernels)


def best_seconds(work: Callable[[bytes], int], data: bytes) -> float:
    """Least processor time of a few runs, in seconds: other jobs of the machine do not count."""
    times = []
    for _ in range(_REPEATS):
        start = time.process_time()
        work(data)
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=2.0)
    parser.add_argument("--file", type=Path, action="append", default=[])
    parser.add_argument("--memory", action="store_true", help="also trace memory (slow)")
    arguments = parser.parse_args()
    files = arguments.file or sorted(KERNELS.glob("sm_*/*.ptx"))
    data = corpus(files, arguments.megabytes)
    seconds = {work.__name__: best_seconds(work, data) for work in (split_lines, parse, lint)}
    result = {
        "bytes": len(data),
        "instructions": parse(data),
        "mb_per_s": {name: round(len(data) / s / 1e6, 2) for name, s in seconds.items()},
        "ratio_to_split": {
            name: round(s / seconds["split_lines"], 2) for name, s in seconds.items()
        },
    }
    if arguments.memory:
        tracemalloc.start()
        lint(data)
        result["peak_bytes_per_byte"] = round(tracemalloc.get_traced_memory()[1] / len(data), 2)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
