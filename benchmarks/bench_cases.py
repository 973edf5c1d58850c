"""Measure the cost of judging a case beside its numerical work; exit with 1 when a bound is missed.

The cases are softmax in float32 on (8, 128, 512). "The numerical work alone" makes the same
inputs, runs op and float64 reference on them and compares, in one plain process with the same
allocator settings. Beside it stand `tasks.case_evaluator`, which ``fuzz``, ``reproduce``,
``minimize`` and the daemon use, with op and reference as callables and as protocol scripts;
the ``fuzz`` command as
a whole; and what scripts cost without this tool: a fresh interpreter per case for op and reference
each, with everything else as fast as here, and done plainly (numbers drawn one by one, the standard
library's JSON and base64, float64 statistics).

    python benchmarks/bench_cases.py [-n 500] [--repeats 3] [--strategies uniform ...] [--json]

All of it runs in a virtual environment with a regular installation of this checkout, made below a
temporary folder, or below --folder, where it is kept for the next time.

The candidates of `case_servers` are processes that take turns, some cases at a time. What counts
is the CPU time of a process and its workers while they judge; their start and end stand beside it,
and are part of the figures for the whole command. Linux only, for the CPU clocks of other
processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import workspaces
from installation import install
from processes import CommandFailedError, plain_environment, timed

TURN = 25  # cases
INTERPRETER_CASES = 20  # the rest is extrapolated: 500 would take minutes

ALONE, EXPLICIT, AUTO = "alone", "callables-explicit", "callables-auto"
SCRIPTS, INTERPRETERS, PRACTICE = "scripts", "interpreters", "practice"
FUZZ_EXPLICIT, FUZZ_AUTO = "fuzz-explicit", "fuzz-auto"
TITLES = {
    ALONE: "the numerical work alone",
    EXPLICIT: "callables, explicit tolerance",
    AUTO: "callables, auto tolerance, checks",
    SCRIPTS: "scripts, explicit tolerance",
    INTERPRETERS: "scripts, an interpreter each",
    PRACTICE: "the same, done plainly",
    FUZZ_EXPLICIT: "fuzz command, explicit tolerance",
    FUZZ_AUTO: "fuzz command, auto tolerance, checks",
}
SERVED = (ALONE, EXPLICIT, AUTO, SCRIPTS, INTERPRETERS, PRACTICE)
COMMANDS = {FUZZ_EXPLICIT: "softmax", FUZZ_AUTO: "softmax_auto"}


@dataclass(frozen=True)
class Run:
    """One candidate in one repeat.

    Attributes
    ----------
    cases : int
    cpu_s, wall_s : float
        For judging them.
    start_cpu_s : float
        For starting and ending the process and its workers.
    """

    cases: int
    cpu_s: float
    wall_s: float
    start_cpu_s: float

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds per case."""
        return self.cpu_s / self.cases * 1e3

    def whole_s(self, count: int) -> float:
        """CPU seconds of a process that judges `count` cases."""
        return self.start_cpu_s + self.cpu_ms * count / 1e3


Repeat = dict[str, Run]


@dataclass(frozen=True)
class Bound:
    """A ratio of CPU times that must not be exceeded.

    Attributes
    ----------
    of, to : str
        Candidates.
    limit : float
    whole : bool
        With start and end of the processes.
    """

    of: str
    to: str
    limit: float
    whole: bool = False


BOUNDS = (
    Bound(EXPLICIT, ALONE, 1.25),
    Bound(AUTO, ALONE, 1.6),
    Bound(FUZZ_EXPLICIT, ALONE, 1.25, whole=True),
    Bound(FUZZ_AUTO, ALONE, 1.6, whole=True),
    Bound(SCRIPTS, INTERPRETERS, 1 / 20),
    Bound(EXPLICIT, PRACTICE, 1 / 60),
)


@dataclass(frozen=True)
class Query:
    """A measurement to make: cases of some strategies, by an interpreter, below a folder."""

    python: str
    folder: Path
    count: int
    strategies: Sequence[str]


class Server:
    """One candidate's process."""

    def __init__(self, name: str, query: Query, count: int) -> None:
        program = str(Path(__file__).with_name("case_servers.py"))
        self._process = subprocess.Popen(
            [query.python, program, name, str(query.folder), str(count), *query.strategies],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=plain_environment(),
        )
        self.name = name
        self.left = self._count = count
        self._cpu_s = self._wall_s = 0.0
        self._answer()

    def _answer(self) -> str:
        answer = self._process.stdout.readline() if self._process.stdout else ""
        if not answer:
            raise CommandFailedError(f"the process of {self.name!r} ended")
        return answer

    def turn(self, cases: int) -> None:
        """Judge the next cases."""
        number = min(cases, self.left)
        if number and self._process.stdin:
            self._process.stdin.write(f"{number}\n")
            self._process.stdin.flush()
            _, cpu_s, wall_s = json.loads(self._answer())
            self._cpu_s += cpu_s
            self._wall_s += wall_s
            self.left -= number

    def close(self) -> Run:
        """End the process."""
        if self._process.stdin:
            self._process.stdin.close()
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        life = usage.ru_utime + usage.ru_stime
        return Run(self._count, self._cpu_s, self._wall_s, life - self._cpu_s)


def command(op: str, query: Query) -> list[str]:
    """The ``fuzz`` command on the same cases."""
    program = str(Path(query.python).with_name("gpuemu-flow"))
    words = [program, "fuzz", op, "-n", str(query.count), "--force"]
    for strategy in query.strategies:
        words += ["--strategy", strategy]
    return [*words, "--layout", "contiguous", "--format", "json"]


def measure(query: Query, names: Sequence[str]) -> Repeat:
    """All candidates once, those that are served taking turns."""
    counts = dict.fromkeys((INTERPRETERS, PRACTICE), min(query.count, INTERPRETER_CASES))
    servers = [
        Server(name, query, counts.get(name, query.count)) for name in SERVED if name in names
    ]
    turns = -(-query.count // TURN)
    for _ in range(turns):
        for server in servers:
            server.turn(-(-counts.get(server.name, query.count) // turns))
    runs = {server.name: server.close() for server in servers}
    for name, op in COMMANDS.items():
        if name in names:
            cost = timed(command(op, query), query.folder, plain_environment())
            runs[name] = Run(query.count, cost.cpu_s, cost.wall_s, 0.0)
    return runs


class Result:
    """Medians over the repeats."""

    def __init__(self, repeats: list[Repeat], count: int) -> None:
        self._repeats = repeats
        self._count = count
        self.names = list(repeats[0])

    def median(self, name: str, value: Callable[[Run], float]) -> float:
        """Of a figure of one candidate."""
        return statistics.median(value(repeat[name]) for repeat in self._repeats)

    def ratio(self, of: str, to: str, *, whole: bool) -> float:
        """Of CPU times, per case or for the processes as a whole."""

        def figure(run: Run) -> float:
            return run.whole_s(self._count) if whole else run.cpu_ms

        return statistics.median(figure(r[of]) / figure(r[to]) for r in self._repeats)

    def rows(self) -> list[dict[str, object]]:
        """All candidates, for JSON."""
        return [
            {
                "candidate": name,
                "cases": self._repeats[0][name].cases,
                "cpu_ms": self.median(name, lambda run: run.cpu_ms),
                "wall_ms": self.median(name, lambda run: run.wall_s / run.cases * 1e3),
                "start_cpu_s": self.median(name, lambda run: run.start_cpu_s),
                "to_alone": None if name in COMMANDS else self.ratio(name, ALONE, whole=False),
                "to_alone_whole": self.ratio(name, ALONE, whole=True),
            }
            for name in self.names
        ]

    def bounds(self) -> list[dict[str, object]]:
        """The bounds on the candidates that were measured."""
        found = []
        for bound in BOUNDS:
            if bound.of in self.names and bound.to in self.names:
                ratio = self.ratio(bound.of, bound.to, whole=bound.whole)
                found.append({**asdict(bound), "ratio": ratio, "missed": ratio > bound.limit})
        return found

    def table(self) -> str:
        """For people."""
        shape = ", ".join(map(str, workspaces.SOFTMAX_SHAPE))
        lines = [
            f"{self._count} cases of softmax float32 ({shape})",
            f"{'':<38}{'ms per case':>18}{'/ alone':>9}{'start, s':>10}{'whole / alone':>15}",
            f"{'':<38}{'CPU':>9}{'wall':>9}{'CPU':>9}{'CPU':>10}{'CPU':>15}",
        ]
        for name, row in zip(self.names, self.rows(), strict=True):
            per_case = "" if row["to_alone"] is None else f"{row['to_alone']:.2f}"
            start = "" if row["to_alone"] is None else f"{row['start_cpu_s']:.2f}"
            note = "" if row["cases"] == self._count else f"  from {row['cases']} cases"
            lines.append(
                f"{TITLES[name]:<38}{row['cpu_ms']:>9.2f}{row['wall_ms']:>9.2f}"
                f"{per_case:>9}{start:>10}{row['to_alone_whole']:>15.2f}{note}"
            )
        for bound in self.bounds():
            what = f"{TITLES[str(bound['of'])]} / {TITLES[str(bound['to'])]}"
            missed = "  missed" if bound["missed"] else ""
            lines.append(f"  {what}: {bound['ratio']:.3f}, at most {bound['limit']:g}{missed}")
        return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--cases", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--strategies", nargs="+", default=["uniform"])
    parser.add_argument("--only", nargs="+", choices=list(TITLES), default=list(TITLES))
    parser.add_argument("--folder", type=Path, help="where the installation is kept")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(argv)
    if min(options.cases, options.repeats) < 1:
        parser.error("--cases and --repeats must be at least 1")
    names = [ALONE, *options.only]
    try:
        with tempfile.TemporaryDirectory() as temporary:
            workspaces.write_softmax(Path(temporary))
            programs = install((options.folder or Path(temporary)).resolve() / "installed")
            python = str(programs / "python")
            query = Query(python, Path(temporary), options.cases, options.strategies)
            repeats = [measure(query, names) for _ in range(options.repeats)]
    except CommandFailedError as error:
        print(error, file=sys.stderr)
        return 2
    result = Result(repeats, options.cases)
    bounds = result.bounds()
    passed = not any(bound["missed"] for bound in bounds)
    if options.json:
        report = {
            "benchmark": "cases",
            "passed": passed,
            "cases": options.cases,
            "shape": workspaces.SOFTMAX_SHAPE,
            "strategies": options.strategies,
            "repeats": options.repeats,
            "bounds": bounds,
            "rows": result.rows(),
        }
        print(json.dumps(report, indent=2))
    else:
        print(result.table())
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
