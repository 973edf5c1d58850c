"""Compare whole commands of two versions of the tool; exit with 1 where the newer costs more.

    python benchmarks/bench_versions.py OLD [NEW] [--rounds 5] [--ops 20] [--bound 1.03] [--json]

OLD and NEW are the ``gpuemu-flow`` programs of two regular installations; NEW is one of this
checkout where it is left out. Each version has a workspace of its own, with ops of one vector each
and softmax (8, 128, 512), as all benchmarks have. The versions take turns within each round, and
in going first. Medians of CPU time are compared, all processes of a command included.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import workspaces
from installation import install
from processes import CommandFailedError, plain_environment, timed

COLD, SMALL, LARGE = "run, cold", "fuzz, 2,000 small cases", "fuzz of softmax, 150 cases"
EDIT = "run after one edit"
SMALL_CASES, LARGE_CASES = 2000, 150
BOUND = 1.03


@dataclass(frozen=True)
class Row:
    """Median CPU milliseconds of one command under both versions."""

    what: str
    old_ms: float
    new_ms: float

    @property
    def ratio(self) -> float:
        """Cost under the newer version, as a multiple of that under the older."""
        return self.new_ms / self.old_ms


class Version:
    """One installation with workspaces of its own."""

    def __init__(self, program: Path, folder: Path, ops: int) -> None:
        self._program = str(program.absolute())
        self._environment = plain_environment()
        self._many, self._softmax = folder / "many", folder / "softmax"
        for workspace in (self._many, self._softmax):
            workspace.mkdir(parents=True)
        workspaces.write_scripts(self._many, ops)
        workspaces.write_gpuemu(self._many, ops)
        workspaces.write_softmax(self._softmax)

    def _cpu_ms(self, workspace: Path, *words: str) -> float:
        return timed([self._program, *words], workspace, self._environment).cpu_s * 1e3

    def measurements(self) -> list[tuple[str, Callable[[], float]]]:
        """Name each measurement, with what makes it once; their order matters."""
        return [
            (COLD, self._cold),
            ("run, nothing to do", self._again("run")),
            (EDIT, self._edited),
            ("list", self._again("list")),
            ("status", self._again("status")),
            ("explain TASK", self._again("explain", "compare:op_1:float32")),
            ("run --format json", self._again("run", "--format", "json")),
            ("report --format html", self._again("report", "--format", "html", "-o", "out.html")),
            ("ci", self._again("ci")),
            (SMALL, self._fuzz(workspaces.SMALL_OP, SMALL_CASES)),
            (LARGE, self._fuzz("softmax_auto", LARGE_CASES)),
        ]

    def _cold(self) -> float:
        shutil.rmtree(self._many / ".gpuemu-cache", ignore_errors=True)
        cost = self._cpu_ms(self._many, "run")
        self._cpu_ms(self._many, "run")  # the stamps of new files are trusted from here on
        return cost

    def _edited(self) -> float:
        workspaces.change_leaf(self._many)
        cost = self._cpu_ms(self._many, "run")
        self._cpu_ms(self._many, "run")
        return cost

    def _again(self, *words: str) -> Callable[[], float]:
        def measure() -> float:
            self._cpu_ms(self._many, *words)  # a kept answer is made where one is kept
            return self._cpu_ms(self._many, *words)

        return measure

    def _fuzz(self, op: str, cases: int) -> Callable[[], float]:
        def measure() -> float:
            shutil.rmtree(self._softmax / ".gpuemu-cache", ignore_errors=True)
            return self._cpu_ms(self._softmax, "fuzz", op, "-n", str(cases))

        return measure


def compare(old: Version, new: Version, rounds: int) -> list[Row]:
    """Measure both versions in turns.

    Parameters
    ----------
    old, new : Version
    rounds : int

    Returns
    -------
    list[Row]
        Medians over the rounds.

    Raises
    ------
    CommandFailedError
        A command did not end with 0.
    """
    costs: dict[str, tuple[list[float], list[float]]] = {}
    for turn in range(rounds):
        pairs = zip(old.measurements(), new.measurements(), strict=True)
        for (what, of_old), (_, of_new) in pairs:
            both = costs.setdefault(what, ([], []))
            order = ((both[0], of_old), (both[1], of_new))
            for found, measure in order if turn % 2 == 0 else order[::-1]:
                found.append(measure())
    return [
        Row(what, statistics.median(olds), statistics.median(news))
        for what, (olds, news) in costs.items()
    ]


def table(rows: list[Row], bound: float) -> str:
    """Make the lines to print."""
    lines = [f"{'CPU of whole commands':28} {'old, ms':>9} {'new, ms':>9} {'new / old':>10}"]
    for row in rows:
        missed = "  beyond the bound" if row.ratio > bound else ""
        lines.append(
            f"{row.what:28} {row.old_ms:9,.0f} {row.new_ms:9,.0f} {row.ratio:10.2f}{missed}"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure and judge; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW", nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ops", type=int, default=20)
    parser.add_argument("--bound", type=float, default=BOUND)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            program = given.new or install(folder / "installed") / "gpuemu-flow"
            old = Version(given.old, folder / "old", given.ops)
            new = Version(program, folder / "new", given.ops)
            rows = compare(old, new, given.rounds)
        except (OSError, subprocess.SubprocessError, CommandFailedError) as error:
            print(f"could not measure: {error}", file=sys.stderr)
            return 2
    found = [asdict(row) | {"ratio": row.ratio} for row in rows]
    print(json.dumps(found) if given.json else table(rows, given.bound))
    return 1 if any(row.ratio > given.bound for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
