"""Large workspaces: a cold run and the commands after it; exits 1 when a bound is missed.

A workspace of many ops, of five tasks each, is run cold. Then each command is run once a round,
as a whole process: after a change of ``gpuemu.toml`` that changes no task, and with nothing
changed. What the cold run costs beyond the programs is its CPU time less that of
`bare_programs`, which calls the same functions on inputs of the same size.

    python benchmarks/bench_scale.py [--ops 2000] [--rounds 3] [--folder DIR] [--part PART] [--json]

All bounds are ratios: CPU time per op, as a share of the bare work of one op in the same run. So
they hold for any number of ops, and a command whose cost grows faster than the workspace misses
its bound in a large one. Below some 500 ops the start of a process is most of what it costs.
``--part cold`` keeps the workspace in the folder, and ``--part commands`` measures the commands
there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import workspaces
from installation import install
from processes import CommandFailedError, Cost, plain_environment, timed

COLD = "cold run, beyond the programs"
PARTS = COLD_RUN, COMMANDS = "cold", "commands"
BARE_OPS = 200  # enough to know what one costs
SETTLED_SECONDS = 2.5  # the stamp of a younger file is not trusted, which some rounds would meet
AIM_MS = 3.0  # a task
BOUNDS = {
    COLD: 17.0,
    "run after a change of gpuemu.toml": 1.0,
    "list, compiled anew": 0.45,
    "status after a change of gpuemu.toml": 0.95,
    "run with nothing to do": 0.005,
    "list": 0.005,
    "graph --format dot": 0.1,
    "status": 0.005,
    "report --format json": 0.3,
    "report --format html": 0.4,
}


@dataclass(frozen=True)
class Row:
    """CPU time of one command on the whole workspace, beside the bare work of one op."""

    what: str
    cpu_s: float
    wall_s: float
    ops: int
    bare_ms: float

    @property
    def per_op_ms(self) -> float:
        """CPU time per op."""
        return self.cpu_s * 1e3 / self.ops

    @property
    def ratio(self) -> float:
        """CPU time per op, as a share of the bare work of one op."""
        return self.per_op_ms / self.bare_ms

    @property
    def missed(self) -> bool:
        """True if the bound is exceeded."""
        return self.ratio > BOUNDS[self.what]


class Bench:
    """One workspace and an installation, below one folder."""

    def __init__(self, folder: Path, ops: int) -> None:
        self._environment = plain_environment()
        self._programs = install(folder / "installed")
        self._workspace = folder / f"scale-{ops}"
        self._reports = folder / "reports"
        self._ops = ops
        self._bare_ms = 0.0

    def _ours(self, *words: str) -> Cost:
        command = [str(self._programs / "gpuemu-flow"), *words]
        return timed(command, self._workspace, self._environment)

    def _bare(self, ops: int) -> float:
        """CPU seconds of the bare work of some ops."""
        program = str(Path(__file__).with_name("bare_programs.py"))
        command = [str(self._programs / "python"), program, str(self._workspace), str(ops)]
        environment = {**self._environment, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        return timed(command, self._workspace, environment).cpu_s

    def cold(self) -> list[Row]:
        """Write the workspace, and run it."""
        shutil.rmtree(self._workspace, ignore_errors=True)
        workspaces.write_scripts(self._workspace, self._ops)
        workspaces.write_gpuemu(self._workspace, self._ops)
        self._measure_bare()
        cost = self._ours("run")
        return [self._row(COLD, [cost], less_s=self._bare_ms / 1e3 * self._ops)]

    def commands(self, rounds: int) -> list[Row]:
        """Run each command in the workspace that was run; the medians of the rounds."""
        self._measure_bare()
        self._ours("run")
        costs: dict[str, list[Cost]] = {}
        for _ in range(rounds):
            for what, cost in self._round():
                costs.setdefault(what, []).append(cost)
        return [self._row(what, costs[what]) for what in BOUNDS if what in costs]

    def _measure_bare(self) -> None:
        if not self._bare_ms:
            some = min(self._ops, BARE_OPS)
            costs = [(self._bare(some) - self._bare(0)) / some for _ in range(3)]
            self._bare_ms = statistics.median(costs) * 1e3

    def _round(self) -> list[tuple[str, Cost]]:
        with (self._workspace / "gpuemu.toml").open("a") as file:
            file.write("# another round\n")
        found = [
            ("list, compiled anew", self._ours("list")),
            ("status after a change of gpuemu.toml", self._ours("status")),
        ]
        found.append(("run after a change of gpuemu.toml", self._ours("run")))
        time.sleep(SETTLED_SECONDS)
        self._ours("run")  # trusts stamps again, and keeps a plan
        found.append(("run with nothing to do", self._ours("run")))
        for command in ("list", "status"):
            self._ours(command)  # keeps its answer
            found.append((command, self._ours(command)))
        found.append(("graph --format dot", self._ours("graph", "--format", "dot")))
        self._reports.mkdir(exist_ok=True)
        for kind in ("json", "html"):
            file_name = str(self._reports / f"report.{kind}")
            cost = self._ours("report", "--format", kind, "-o", file_name)
            found.append((f"report --format {kind}", cost))
        return found

    def _row(self, what: str, costs: Sequence[Cost], less_s: float = 0.0) -> Row:
        cpu_s = statistics.median(cost.cpu_s for cost in costs) - less_s
        wall_s = statistics.median(cost.wall_s for cost in costs)
        return Row(what, cpu_s, wall_s, self._ops, self._bare_ms)


def table(rows: Sequence[Row]) -> str:
    """Make the lines to print."""
    ops, bare_ms = rows[0].ops, rows[0].bare_ms
    tasks = workspaces.TASKS_PER_OP
    lines = [
        f"{ops:,} ops, {ops * tasks:,} tasks; the bare work of one op: {bare_ms:.2f} ms of CPU",
        f"{'':<40}{'CPU, s':>10}{'wall, s':>10}{'ms an op':>10}{'/ bare':>10}{'bound':>8}",
    ]
    lines += [
        f"{row.what:<40}{row.cpu_s:>10.2f}{row.wall_s:>10.2f}{row.per_op_ms:>10.3f}"
        f"{row.ratio:>10.3f}{BOUNDS[row.what]:>8g}" + ("  missed" if row.missed else "")
        for row in rows
    ]
    lines += [
        f"{COLD}: {row.per_op_ms / tasks:.2f} ms of CPU a task (aim {AIM_MS:g})"
        for row in rows
        if row.what == COLD
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep installation and workspace here")
    parser.add_argument("--part", choices=PARTS, help="only this part")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(argv)
    if options.ops < 1 or options.rounds < 1:
        parser.error("--ops and --rounds must be at least 1")
    if options.part and options.folder is None:
        parser.error("--part needs --folder")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            bench = Bench(folder.resolve(), options.ops)
            rows = bench.cold() if options.part != COMMANDS else []
            rows += bench.commands(options.rounds) if options.part != COLD_RUN else []
        except (CommandFailedError, subprocess.SubprocessError, OSError) as error:
            print(error, file=sys.stderr)
            return 2
    passed = not any(row.missed for row in rows)
    if options.json:
        report = {
            "benchmark": "scale",
            "passed": passed,
            "rows": [
                {**asdict(row), "ratio": row.ratio, "bound": BOUNDS[row.what]} for row in rows
            ],
        }
        print(json.dumps(report, indent=2))
    else:
        print(table(rows))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
