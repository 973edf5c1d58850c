"""Cost of the seeded generator relative to numpy's PCG64; exits 1 when a bound is missed.

Both candidates make float32 values in [-10, 10). They take turns in one process, and what counts is
the ratio of the medians of their CPU time, which hardly depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from gpuemu_flow.numerics.rng import SeededRng

BOUNDS = {1_000_000: 4.0}
SIZES = (1_000, 100_000, 1_000_000, 10_000_000)
VALUES_PER_SAMPLE = 200_000  # smaller sizes are repeated to this, so that a sample takes a while
VALUES_PER_SIZE = 40_000_000
FEWEST_ROUNDS, MOST_ROUNDS = 7, 101


@dataclass(frozen=True)
class Row:
    """One size: nanoseconds of CPU time per value, and the ratio that the bound is for."""

    count: int
    ours_ns: float
    pcg64_ns: float
    ratio: float
    bound: float | None

    @property
    def missed(self) -> bool:
        """True if there is a bound and it is exceeded."""
        return self.bound is not None and self.ratio > self.bound


def cpu_time_ns(work: Callable[[], object], repeats: int) -> int:
    """CPU time of this thread alone: numpy's linear algebra threads may spin beside it."""
    start = time.thread_time_ns()
    for _ in range(repeats):
        work()
    return time.thread_time_ns() - start


def measure(count: int) -> Row:
    """Let both candidates draw `count` values in turn."""
    ours, pcg64 = SeededRng(1), np.random.Generator(np.random.PCG64(1))
    candidates: tuple[Callable[[], object], ...] = (
        lambda: ours.uniform10_f32(count),
        lambda: pcg64.uniform(-10, 10, count).astype("float32"),
    )
    repeats = max(1, VALUES_PER_SAMPLE // count)
    rounds = min(MOST_ROUNDS, max(FEWEST_ROUNDS, VALUES_PER_SIZE // (repeats * count)))
    samples: tuple[list[int], list[int]] = ([], [])
    for work in candidates:
        cpu_time_ns(work, repeats)  # the first pays for page faults and look-ups
    for _ in range(rounds):
        for work, times in zip(candidates, samples, strict=True):
            times.append(cpu_time_ns(work, repeats))
    ours_ns, pcg64_ns = (statistics.median(times) / (repeats * count) for times in samples)
    return Row(count, ours_ns, pcg64_ns, ours_ns / pcg64_ns, BOUNDS.get(count))


def table(rows: list[Row]) -> str:
    """The rows for people."""
    lines = [f"{'values':>12}{'ours ns':>10}{'PCG64 ns':>10}{'ratio':>8}{'bound':>8}"]
    for row in rows:
        bound = "" if row.bound is None else f"{row.bound:.2f}"
        verdict = "  missed" if row.missed else ""
        lines.append(
            f"{row.count:>12,}{row.ours_ns:>10.2f}{row.pcg64_ns:>10.2f}"
            f"{row.ratio:>8.2f}{bound:>8}{verdict}"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(argv)
    rows = [measure(count) for count in SIZES]
    passed = not any(row.missed for row in rows)
    if options.json:
        report = {
            "benchmark": "rng",
            "passed": passed,
            "rows": [asdict(row) for row in rows],
        }
        print(json.dumps(report, indent=2))
    else:
        print(table(rows))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
