"""Cost of comparing two outputs relative to a plain read of both; exits 1 when a bound is missed.

A plain read is a sum over each of the two arrays. All candidates take turns in one process, and
what counts is the ratio of the medians of their CPU time, which hardly depends on the machine. The
bounds are for 16 M elements of float32: at most 2.5 plain reads, and less than ``np.allclose``,
which gives nothing but a boolean.
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

from gpuemu_flow.model.types import CheckResult, Tolerance, Verdict
from gpuemu_flow.numerics.compare import Policy, check_outputs
from gpuemu_flow.numerics.envelope import Envelope

BOUNDED_SIZE = 1 << 24
SIZES = (1 << 13, 1 << 19, BOUNDED_SIZE)
BOUND = 2.5
ATOL = RTOL = 1e-5
FEWEST_ROUNDS, MOST_ROUNDS = 5, 51
ELEMENTS_PER_SIZE = 100_000_000


@dataclass(frozen=True)
class Row:
    """One candidate at one size: median CPU milliseconds, and as a multiple of a plain read."""

    count: int
    candidate: str
    milliseconds: float
    ratio: float


def straightforward(actual: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    """The same verdict and statistics as one would write them down, all in float64."""
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    error = np.abs(a - e)
    share = error / (ATOL + RTOL * np.abs(e))
    relative = error[e != 0] / np.abs(e[e != 0])
    bits_a, bits_e = (x.view(np.int32).astype(np.int64) for x in (actual, expected))
    keys = [np.where(b < 0, np.int64(-(1 << 31)) - b - 1, b) for b in (bits_a, bits_e)]
    ulps = np.abs(keys[0] - keys[1])
    p50, p90, p99 = np.quantile(error, [0.5, 0.9, 0.99])
    return {
        "failing": float(np.count_nonzero(~(share <= 1))),
        "max_abs": float(error.max()),
        "mean_abs": float(error.mean()),
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "max_rel": float(relative.max()),
        "mean_rel": float(relative.mean()),
        "max_ulp": float(ulps.max()),
        "mean_ulp": float(ulps.mean()),
        "share": float(share.max()),
        "worst": float(share.argmax()),
    }


def explicit(actual: np.ndarray, expected: np.ndarray) -> CheckResult:
    """check_outputs under an explicit tolerance."""
    return check_outputs(
        {"y": actual},
        {"y": expected},
        tolerance={"float32": Tolerance(ATOL, RTOL)},
        policy=Policy(),
    )


def automatic(actual: np.ndarray, expected64: np.ndarray) -> CheckResult:
    """check_outputs under the auto tolerance, against unrounded float64 values."""
    inputs = {"x": np.zeros(512, np.float32)}
    envelope = Envelope(
        inputs, {"y": expected64}, None, dtype="float32", seed=1, exact_op=False, weak=False
    )
    return check_outputs(
        {"y": actual},
        {"y": expected64},
        tolerance=envelope,
        policy=Policy(),
        expected_dtypes={"y": "float32"},
    )


def candidates(count: int) -> dict[str, Callable[[], object]]:
    """Return the calls to measure at one size; the output is right to about one ulp."""
    rng = np.random.default_rng(0)
    expected = rng.standard_normal(count, dtype=np.float32)
    actual = expected * (1 + np.float32(6e-8) * rng.standard_normal(count, dtype=np.float32))
    expected64 = expected.astype(np.float64)
    for result in (explicit(actual, expected), automatic(actual, expected64)):
        if result.verdict is not Verdict.PASSED:
            raise SystemExit(f"the benchmark's own output does not pass: {result.failures}")
    return {
        "plain read": lambda: (actual.sum(), expected.sum()),
        "gpuemu-flow": lambda: explicit(actual, expected),
        "gpuemu-flow auto": lambda: automatic(actual, expected64),
        "np.allclose": lambda: np.allclose(actual, expected, RTOL, ATOL),
        "assert_allclose": lambda: np.testing.assert_allclose(actual, expected, RTOL, ATOL),
        "float64, written down": lambda: straightforward(actual, expected),
    }


def measure(count: int) -> list[Row]:
    """Let all candidates compare outputs of `count` elements in turn."""
    works = candidates(count)
    rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, ELEMENTS_PER_SIZE // count))
    times: dict[str, list[int]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            start = time.thread_time_ns()
            work()
            times[name].append(time.thread_time_ns() - start)
    medians = {name: statistics.median(spent) for name, spent in times.items()}
    plain = medians["plain read"]
    return [Row(count, name, ns / 1e6, ns / plain) for name, ns in medians.items()]


def missed_bounds(rows: list[Row]) -> list[str]:
    """List the missed bounds; empty when all hold or the bounded size was not measured."""
    ratios = {row.candidate: row.ratio for row in rows if row.count == BOUNDED_SIZE}
    if not ratios:
        return []
    missed = []
    ours = ratios["gpuemu-flow"]
    if ours > BOUND:
        missed.append(f"{ours:.2f} plain reads at {BOUNDED_SIZE} elements, at most {BOUND} wanted")
    if ours >= ratios["np.allclose"]:
        missed.append(f"{ours:.2f} plain reads, np.allclose takes {ratios['np.allclose']:.2f}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="elements, with commas")
    arguments = parser.parse_args()
    rows = [row for size in arguments.sizes.split(",") for row in measure(int(size))]
    missed = missed_bounds(rows)
    if arguments.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "missed": missed}))
    else:
        print(f"{'elements':>10}  {'candidate':<22} {'CPU ms':>10} {'x plain read':>12}")
        for row in rows:
            print(
                f"{row.count:>10}  {row.candidate:<22} {row.milliseconds:>10.3f} {row.ratio:>12.2f}"
            )
        for line in missed:
            print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
