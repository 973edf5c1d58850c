"""Fuzzes right ops and prints how many cases failed: what the oracle must never do.

    python tests/quality/false_alarms.py [--cases 2000] [--seed 1] [--seconds 600] [--controls]

The ops of both workspaces in each of their dtypes, and with ``--controls`` their other right
implementations. The cases are those of ``fuzz``, judged as it judges them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from controls import CONTROLS, install
from oracle import REPOSITORY, copy_workspace, subjects

from gpuemu_flow.cases.plan import iterate_cases
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.fuzz.subjects import OpSubject, op_names
from gpuemu_flow.judging.case_evaluator import SESSIONS_PER_EVALUATOR, open_evaluator
from gpuemu_flow.runners.pool import Pool

PLAIN = Path(__file__).parent / "plain_ops"
BATCH = 16


@dataclass
class Tally:
    """What came of the cases so far."""

    verdicts: Counter[str] = field(default_factory=Counter)
    unjudged: int = 0
    tenth: int = 0
    share: float = 0.0
    failures: list[str] = field(default_factory=list)


def right_ops(folder: Path, *, controls: bool) -> Iterator[tuple[str, list[OpSubject]]]:
    """Each right implementation by name, in all its dtypes."""
    for source in (REPOSITORY, PLAIN):
        copy = copy_workspace(folder / source.name, source)
        for op in op_names(Workspace(source)):
            yield op, subjects(copy, op)
    for number, control in enumerate(CONTROLS if controls else ()):
        copy = copy_workspace(folder / f"control{number}")
        install(control, copy)
        yield f"{control.op}/{control.name}", subjects(copy, control.op)


def fuzz(pool: Pool, name: str, item: OpSubject, count: int, seed: int, tally: Tally) -> None:
    """Judge `count` cases of one implementation in one dtype."""
    cases = iterate_cases(
        item.schema,
        seed=seed,
        dtype=item.subject.dtype,
        strategies=item.strategies,
        layouts=item.layouts,
    )
    stream = islice(cases, count)
    with open_evaluator(pool, item.subject) as evaluator:
        while batch := list(islice(stream, BATCH)):
            for evaluated in evaluator.judge_all(batch):
                result = evaluated.result
                tally.verdicts[result.verdict.value] += 1
                if result.stats is not None:
                    tally.unjudged += bool(result.stats.num_no_verdict)
                    tally.tenth += result.stats.num_no_verdict > result.stats.count / 10
                    tally.share = max(tally.share, result.stats.tolerance_used or 0.0)
                if result.failures:
                    where = f"{name}:{item.subject.dtype} seed {evaluated.case.seed}"
                    tally.failures.append(f"{where}: {result.failures[0].message}")


def main() -> None:
    """Fuzz until all is done or the time is over, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--controls", action="store_true")
    asked = parser.parse_args()
    tally = Tally()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        staging = Path(folder, "staging")
        staging.mkdir()
        found = right_ops(Path(folder), controls=asked.controls)
        items = [(name, item) for name, op_subjects in found for item in op_subjects]
        with Pool(SESSIONS_PER_EVALUATOR, staging=staging) as pool:
            left = list(items)
            while left and time.monotonic() - begin < asked.seconds:
                name, item = left.pop(0)
                fuzz(pool, name, item, asked.cases, asked.seed, tally)
    print(f"{sum(tally.verdicts.values())} cases: {dict(tally.verdicts)}")
    print(f"{len(items) - len(left)} of {len(items)} implementations and dtypes looked at")
    print(
        f"{tally.unjudged} with elements that have no verdict, {tally.tenth} with a tenth of them"
    )
    print(f"largest share of a tolerance: {tally.share:.3f}")
    print(*tally.failures, sep="\n")


if __name__ == "__main__":
    main()
