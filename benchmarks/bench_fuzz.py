"""Measure what ``fuzz`` adds to small cases, and what ``-j 2`` gains; exit with 1 beyond a bound.

    python benchmarks/bench_fuzz.py [--small 6000] [--large 300] [--rounds 3] [--json]

Small cases: float32 (4, 16), all value strategies and layouts, an explicit tolerance; op and
reference multiply by 3. "The numerical work alone" makes the same inputs one case after another,
runs both functions and compares, in one plain process. The command may add 0.25 ms of CPU time a
case, in all of its processes.

Large cases: softmax in float32 on (8, 128, 512), all value strategies. What counts is the wall time
of ``-j 1`` beside ``-j 2``, which has to be 1.7 times as fast; the machine needs two processors and
nothing else to do.

The start of the command is taken away from both: of a run with few cases. All of it takes turns in
one run, from a regular installation of this checkout, made below a temporary folder, or below
--folder, where it is kept. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import workspaces
from installation import install
from processes import CommandFailedError, Cost, output_of, plain_environment, timed

FEW = 20
"""Cases of the runs whose cost stands for the start of a command."""
MOST_ADDED_MS = 0.25
LEAST_GAIN = 1.7
JOBS = 2


@dataclass(frozen=True)
class Round:
    """Milliseconds per case in one round.

    Attributes
    ----------
    alone, fuzz : float
        CPU time of small cases.
    one, more : float
        Wall time of large cases with ``-j 1`` and ``-j 2``.
    """

    alone: float
    fuzz: float
    one: float
    more: float

    @property
    def added(self) -> float:
        """CPU milliseconds that the command adds to a small case."""
        return self.fuzz - self.alone

    @property
    def gain(self) -> float:
        """Speed of ``-j 2`` as a multiple of that of ``-j 1``."""
        return self.one / self.more


def alone(folder: Path, count: int) -> None:
    """Do the numerical work of the small cases, and print its CPU milliseconds per case."""
    import numpy as np  # noqa: PLC0415 - imports of the process that is measured
    from case_servers import compare, load_function, widen  # noqa: PLC0415

    from gpuemu_flow.build.workspace import Workspace  # noqa: PLC0415
    from gpuemu_flow.cases.generate import materialise  # noqa: PLC0415
    from gpuemu_flow.fuzz.fuzzing import case_stream  # noqa: PLC0415
    from gpuemu_flow.fuzz.subjects import op_subject  # noqa: PLC0415
    from gpuemu_flow.workers import limits  # noqa: PLC0415

    os.chdir(folder)
    op, reference = (load_function(folder / f"{name}.py") for name in workspaces.SMALL_PROGRAMS)
    subject = op_subject(Workspace(), workspaces.SMALL_OP, "float32")
    cases = list(islice(case_stream(subject, seed=workspaces.SEED), count))
    limits.tune()
    begin = time.process_time()
    with np.errstate(over="ignore"):
        for case in cases:
            inputs = materialise(case)
            compare(inputs, {"result": op(**inputs)}, {"result": reference(**widen(inputs))})
    print((time.process_time() - begin) / count * 1e3)


class Bench:
    """The candidates, each measured when it is asked for.

    Parameters
    ----------
    programs : Path
        The installation's folder of programs.
    folder : Path
        A workspace with the ops.
    """

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder

    def alone(self, count: int) -> float:
        """CPU milliseconds per small case of the numerical work alone."""
        command = [str(self._programs / "python"), __file__, "alone", str(self._folder), str(count)]
        return float(output_of(command, self._folder, plain_environment()))

    def fuzz(self, op: str, count: int, jobs: int, what: Callable[[Cost], float]) -> float:
        """Milliseconds per case of the command, less the cost of its start."""
        few, many = (what(self._run(op, number, jobs)) for number in (FEW, FEW + count))
        return (many - few) / count * 1e3

    def _run(self, op: str, count: int, jobs: int) -> Cost:
        """Run the command with an empty cache."""
        shutil.rmtree(self._folder / ".gpuemu-cache", ignore_errors=True)
        program = str(self._programs / "gpuemu-flow")
        words = ["fuzz", op, "-n", str(count), "-j", str(jobs), "--format", "json"]
        return timed([program, *words], self._folder, plain_environment())

    def round(self, small: int, large: int) -> Round:
        """Measure everything once."""
        return Round(
            self.alone(small),
            self.fuzz(workspaces.SMALL_OP, small, 1, lambda cost: cost.cpu_s),
            self.fuzz("softmax", large, 1, lambda cost: cost.wall_s),
            self.fuzz("softmax", large, JOBS, lambda cost: cost.wall_s),
        )


def report(rounds: list[Round], small: int, large: int) -> dict[str, Any]:
    """Return the medians, and the bounds that were missed."""
    figures = {
        name: statistics.median(getattr(each, name) for each in rounds)
        for name in ("alone", "fuzz", "added", "one", "more", "gain")
    }
    missed = []
    if figures["added"] > MOST_ADDED_MS:
        missed.append("added")
    if figures["gain"] < LEAST_GAIN:
        missed.append("gain")
    return {
        "benchmark": "fuzz",
        "passed": not missed,
        "small": small,
        "large": large,
        "rounds": len(rounds),
        "missed": missed,
        **figures,
    }


def table(found: dict[str, Any]) -> str:
    """Return the figures for people."""
    added, gain = found["added"], found["gain"]
    return "\n".join(
        [
            f"{found['small']} small cases, ms of CPU a case",
            f"  the numerical work alone   {found['alone']:7.3f}",
            f"  the fuzz command, -j 1     {found['fuzz']:7.3f}",
            f"  added                      {added:7.3f}  at most {MOST_ADDED_MS}"
            f" ({added / found['alone']:.2f} of the work alone)",
            f"{found['large']} large cases, ms of wall time a case",
            f"  -j 1                       {found['one']:7.3f}",
            f"  -j {JOBS}                       {found['more']:7.3f}",
            f"  times as fast              {gain:7.3f}  at least {LEAST_GAIN}",
            *(f"  missed: {name}" for name in found["missed"]),
        ]
    )


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["alone"]:
        alone(Path(arguments[1]), int(arguments[2]))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", type=int, default=6000, help="small cases")
    parser.add_argument("--large", type=int, default=300, help="large cases")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the installation is kept")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    if min(options.small, options.large, options.rounds) < 1:
        parser.error("--small, --large and --rounds must be at least 1")
    try:
        with tempfile.TemporaryDirectory() as temporary:
            workspaces.write_softmax(Path(temporary))
            programs = install((options.folder or Path(temporary)).resolve() / "installed")
            bench = Bench(programs, Path(temporary))
            rounds = [bench.round(options.small, options.large) for _ in range(options.rounds)]
    except CommandFailedError as error:
        print(error, file=sys.stderr)
        return 2
    found = report(rounds, options.small, options.large)
    print(json.dumps(found, indent=2) if options.json else table(found))
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
