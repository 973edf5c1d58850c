"""A run with nothing to do, beside ninja, make, doit and snakemake; exits 1 when a bound is missed.

Each tool gets the same graph of files, built once. Then the tools take turns, as whole processes:
once each with nothing changed, round after round, and a few times with one script edited. The
bounds are for the ratios of the medians of CPU time, which other work on the machine hardly moves;
all of these tools do a no-op on one thread.

    python benchmarks/bench_noop.py [--tasks 1000 10000] [--folder DIR] [--json]

The tool is measured as its users have it: the console script of a regular installation, made from
this checkout in a virtual environment below the folder. Building 10,000 real tasks takes minutes;
with --folder they are kept for the next time.
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
from dataclasses import asdict, dataclass, field
from pathlib import Path

import workspaces
from installation import checkout_digest, install
from processes import CommandFailedError, Cost, output_of, plain_environment, timed

OURS, EDITABLE, NINJA, INTERPRETER = "gpuemu-flow", "gpuemu-flow (editable)", "ninja", "interpreter"
DOIT = ("doit (dbm)", "doit (sqlite3)")
BOUNDS = {
    (1_000, "ninja"): 2.7,
    (10_000, "ninja"): 1.5,
    (1_000, "doit"): 0.35,
    (10_000, "doit"): 0.15,
}
SNAKEMAKE_TASKS = 1_000  # beyond that it takes minutes to build
FEWEST_ROUNDS = 7


@dataclass(frozen=True)
class Tool:
    """One candidate: how its files are written, how it is run, and how a no-op shows."""

    name: str
    write: Callable[[Path, int], None]
    command: list[str]
    did_nothing: Callable[[str], bool]

    @property
    def slug(self) -> str:
        """The name as a file name."""
        return self.name.replace(" (", "-").rstrip(")")


@dataclass
class Row:
    """Measurements of one tool at one size; times in milliseconds."""

    tool: str
    cold_s: float | None = None
    noop: list[Cost] = field(default_factory=list, repr=False)
    leaf: list[Cost] = field(default_factory=list, repr=False)

    @property
    def cpu_ms(self) -> float:
        """Median CPU time of a no-op."""
        return statistics.median(cost.cpu_s for cost in self.noop) * 1e3

    @property
    def wall_ms(self) -> float:
        """Median wall time of a no-op."""
        return statistics.median(cost.wall_s for cost in self.noop) * 1e3

    def to_json(self) -> dict[str, object]:
        """Medians, and each sample of the no-op's CPU time."""
        leaf = statistics.median(c.cpu_s for c in self.leaf) * 1e3 if self.leaf else None
        leaf_wall = statistics.median(c.wall_s for c in self.leaf) * 1e3 if self.leaf else None
        return {
            "tool": self.tool,
            "cold_s": self.cold_s,
            "noop_cpu_ms": self.cpu_ms,
            "noop_wall_ms": self.wall_ms,
            "leaf_cpu_ms": leaf,
            "leaf_wall_ms": leaf_wall,
            "noop_cpu_samples_ms": [round(cost.cpu_s * 1e3, 3) for cost in self.noop],
        }


@dataclass(frozen=True)
class Bound:
    """A ratio of no-op CPU times that must not be exceeded."""

    tasks: int
    peer: str
    limit: float
    ratio: float

    @property
    def missed(self) -> bool:
        """True if the limit is exceeded."""
        return self.ratio > self.limit


class Bench:
    """Workspaces, environments and measurements below one folder."""

    def __init__(self, folder: Path, snakemake: str | None) -> None:
        self._folder = folder
        self._environment = plain_environment()
        self._snakemake = snakemake
        self._version = checkout_digest()
        self._programs = install(folder / "installed")
        self._editable = install(folder / "editable", editable=True)

    def tools(self, tasks: int) -> list[Tool]:
        """The candidates that are there, ours first."""
        programs = self._programs
        run = [str(programs / "gpuemu-flow"), "run"]
        found = [
            Tool(OURS, workspaces.write_gpuemu, run, lambda said: said.startswith("up to date")),
            Tool(NINJA, workspaces.write_ninja, ["ninja"], lambda said: "no work to do" in said),
        ]
        if shutil.which("make"):
            found.append(
                Tool("make", workspaces.write_make, ["make", "all"], lambda s: "Nothing" in s)
            )
        for name, backend in zip(DOIT, ("dbm", "sqlite3"), strict=True):
            found.append(
                Tool(name, workspaces.write_doit(backend), [str(programs / "doit")], _doit_rested)
            )
        if self._snakemake and tasks <= SNAKEMAKE_TASKS:
            command = [self._snakemake, "--cores", "2", "all"]
            found.append(
                Tool("snakemake", workspaces.write_snakemake, command, lambda s: "Nothing" in s)
            )
        return found

    def place(self, tool: Tool, tasks: int) -> Path:
        """A tool's workspace."""
        return self._folder / str(tasks) / tool.slug

    def build(self, tool: Tool, tasks: int) -> float | None:
        """Write a workspace and build it, unless that has been done.

        Returns
        -------
        float or None
            Wall seconds of the cold build; None when an earlier version of ours did it.
        """
        folder = self.place(tool, tasks)
        record = folder.parent / f"{tool.slug}.cold.json"
        if not record.exists():
            print(f"building {tasks} tasks with {tool.name}", file=sys.stderr)
            shutil.rmtree(folder, ignore_errors=True)
            ops = tasks // workspaces.TASKS_PER_OP
            workspaces.write_scripts(folder, ops)
            folder.joinpath("out").mkdir()
            tool.write(folder, ops)
            cost = timed(tool.command, folder, self._environment)
            record.write_text(json.dumps({**asdict(cost), "version": self._version}))
        self.settle(tool, folder)
        built = json.loads(record.read_text())
        stale = tool.name == OURS and built["version"] != self._version
        return None if stale else float(built["wall_s"])

    def settle(self, tool: Tool, folder: Path) -> None:
        """Run until nothing is left to do, and make sure that a no-op is one."""
        timed(tool.command, folder, self._environment)
        if not tool.did_nothing(output_of(tool.command, folder, self._environment)):
            raise CommandFailedError(f"{tool.name} in {folder} always finds something to do")

    def editable(self, ours: Tool, tasks: int) -> Tool:
        """Our tool from an editable installation, on a copy of its workspace."""
        command = [str(self._editable / "gpuemu-flow"), "run"]
        tool = Tool(EDITABLE, ours.write, command, ours.did_nothing)
        folder = self.place(tool, tasks)
        if not folder.exists():
            shutil.copytree(self.place(ours, tasks), folder)
        self.settle(tool, folder)
        return tool

    def measure(self, tasks: int, rounds: int, leaf_rounds: int) -> list[Row]:
        """All tools at one size, taking turns."""
        tools = self.tools(tasks)
        rows = {tool.name: Row(tool.name, self.build(tool, tasks)) for tool in tools}
        extra = self.editable(tools[0], tasks)
        candidates = [(tool, self.place(tool, tasks)) for tool in (*tools, extra)]
        bare = [str(self._programs / "python"), "-c", "pass"]
        candidates.append((Tool(INTERPRETER, tools[0].write, bare, bool), self._folder))
        for _ in range(rounds):
            for tool, folder in candidates:
                row = rows.setdefault(tool.name, Row(tool.name))
                row.noop.append(timed(tool.command, folder, self._environment))
        for _ in range(leaf_rounds):
            for tool, folder in candidates[: len(tools)]:
                workspaces.change_leaf(folder)
                rows[tool.name].leaf.append(timed(tool.command, folder, self._environment))
        for tool, folder in candidates[: len(tools)]:
            self.settle(tool, folder)
        return list(rows.values())


def _doit_rested(said: str) -> bool:
    """doit marks a task that it runs with a dot, and one that is up to date with two dashes."""
    return "\n. " not in f"\n{said}" and "-- " in said


def judge(tasks: int, rows: list[Row]) -> list[Bound]:
    """The bounds at one size; doit counts with its faster database."""
    cpu = {row.tool: row.cpu_ms for row in rows}
    peers = {"ninja": cpu[NINJA], "doit": min(cpu[name] for name in DOIT)}
    return [
        Bound(tasks, peer, BOUNDS[tasks, peer], cpu[OURS] / time)
        for peer, time in peers.items()
        if (tasks, peer) in BOUNDS
    ]


def table(tasks: int, rows: list[Row], bounds: list[Bound]) -> str:
    """One size for people."""
    ninja = next(row for row in rows if row.tool == NINJA)
    lines = [
        f"{tasks:,} tasks",
        f"{'':<24}{'no-op, ms':>18}{'/ ninja':>16}{'one leaf changed, ms':>24}{'cold, s':>10}",
        f"{'':<24}{'CPU':>9}{'wall':>9}{'CPU':>8}{'wall':>8}{'CPU':>12}{'wall':>12}{'wall':>10}",
    ]
    for row in rows:
        leaf = [statistics.median(c.cpu_s for c in row.leaf) * 1e3] if row.leaf else []
        leaf += [statistics.median(c.wall_s for c in row.leaf) * 1e3] if row.leaf else []
        lines.append(
            f"{row.tool:<24}{row.cpu_ms:>9.1f}{row.wall_ms:>9.1f}"
            f"{row.cpu_ms / ninja.cpu_ms:>8.2f}{row.wall_ms / ninja.wall_ms:>8.2f}"
            + (f"{leaf[0]:>12.1f}{leaf[1]:>12.1f}" if leaf else f"{'':>24}")
            + (f"{row.cold_s:>10.1f}" if row.cold_s is not None else "")
        )
    lines += [
        f"  CPU time / {bound.peer}: {bound.ratio:.3f}, at most {bound.limit:g}"
        + ("  missed" if bound.missed else "")
        for bound in bounds
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=11, help=f"at least {FEWEST_ROUNDS}")
    parser.add_argument("--leaf-rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep what is built here, and use it again")
    parser.add_argument("--snakemake", default=shutil.which("snakemake"), metavar="PROGRAM")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(argv)
    if shutil.which(NINJA) is None:
        parser.error("ninja is not installed; it is what the bounds refer to")
    if options.rounds < FEWEST_ROUNDS:
        parser.error(f"--rounds must be at least {FEWEST_ROUNDS}")
    if any(tasks % workspaces.TASKS_PER_OP for tasks in options.tasks):
        parser.error(f"--tasks must be multiples of {workspaces.TASKS_PER_OP}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            bench = Bench(folder.resolve(), options.snakemake)
            sizes = [
                (tasks, bench.measure(tasks, options.rounds, options.leaf_rounds))
                for tasks in options.tasks
            ]
        except (CommandFailedError, subprocess.SubprocessError, OSError) as error:
            print(error, file=sys.stderr)
            return 2
    bounds = [bound for tasks, rows in sizes for bound in judge(tasks, rows)]
    skipped = [] if options.snakemake else ["snakemake: not installed"]
    passed = not any(bound.missed for bound in bounds)
    if options.json:
        report = {
            "benchmark": "noop",
            "passed": passed,
            "bounds": [{**asdict(bound), "missed": bound.missed} for bound in bounds],
            "sizes": [{"tasks": n, "rows": [row.to_json() for row in rows]} for n, rows in sizes],
            "skipped": skipped,
        }
        print(json.dumps(report, indent=2))
    else:
        for tasks, rows in sizes:
            print(table(tasks, rows, [b for b in bounds if b.tasks == tasks]))
        print(*skipped, sep="\n", end="\n" if skipped else "")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
