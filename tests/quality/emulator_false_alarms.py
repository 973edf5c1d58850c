"""Launches right kernels on many inputs and prints what the checks found: it must be nothing.

    python tests/quality/emulator_false_alarms.py [--cases 10000] [--seed 1] [--seconds 3600]

The kernels are those of tests/emulator_kernels, with sizes drawn anew for each round; all checks of
one launch are on, and the values are compared with what is expected.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from emulated_kernels import Case, all_cases
from flag_kernels import contended, flags

LARGEST = 400


@dataclass
class Tally:
    """Counts and false alarms of the cases launched so far."""

    cases: Counter[str] = field(default_factory=Counter)
    alarms: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Cases launched."""
        return sum(self.cases.values())


def judge(case: Case, name: str, tally: Tally) -> None:
    """Launch one case and note what is said of it."""
    tally.cases[case.entry] += 1
    result = case.launch()
    tally.alarms += [f"{name}: {finding}" for finding in result.findings]
    try:
        case.check(result)
    except AssertionError as error:
        tally.alarms.append(f"{name}: wrong values: {' '.join(str(error).split())[:300]}")


def run(cases: int, seed: int, seconds: float) -> Tally:
    """Launch all kernels in turn until there were enough cases, or the time is up."""
    tally, begin, number = Tally(), time.monotonic(), 0
    while tally.count < cases and time.monotonic() - begin < seconds:
        number += 1
        size = int(np.random.default_rng([seed, number]).integers(1, LARGEST))
        rng = np.random.default_rng([seed, number, 1])
        waiting = (*flags(rng, size), *contended(rng, size))
        for case in (*all_cases(1000 * seed + number, size), *waiting):
            if tally.count < cases:
                judge(case, f"{case.entry} seed {1000 * seed + number} n {size}", tally)
    return tally


def main() -> None:
    """Print the count, and every alarm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600)
    given = parser.parse_args()
    tally = run(given.cases, given.seed, given.seconds)
    for alarm in tally.alarms:
        print(alarm)
    print(f"{tally.count:,} cases of {len(tally.cases)} kernels, {len(tally.alarms)} false alarms")
    sys.exit(1 if tally.alarms else 0)


if __name__ == "__main__":
    main()
