"""What judging a case costs beside the numerical work in it; exits 1 when a bound is missed.

The cases are softmax in float32 on (8, 128, 512). "The numerical work alone" makes the same
inputs, runs op and float64 reference on them and compares, in one plain process with the same
allocator settings. Beside it stand `tasks.trial`, which `fuzz`, `reproduce`, `minimize` and the
daemon use, with op and reference as callables and as protocol scripts, and what scripts cost
without this tool: a fresh interpreter per case for op and reference each.

    python benchmarks/bench_cases.py [-n 500] [--repeats 3] [--json]

All candidates are separate processes that take turns, some cases at a time. What counts is CPU time
of the process and all its workers while they judge; starting them is reported beside it. Linux.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import workspaces
from processes import plain_environment, tree_cpu_s

SHAPE = (8, 128, 512)
SEED = 1
CHUNK = 25  # cases per turn
INTERPRETER_CASES = 20  # extrapolated: 500 would take minutes
CHECKED_FIRST, CHECKED_EVERY = 8, 16  # as `fuzz` has it: all checks on these
TOLERANCE = {"float32": {"atol": 1e-6, "rtol": 1e-4}}

ALONE, EXPLICIT, AUTO, SCRIPTS, INTERPRETERS = (
    "numerical work alone",
    "callables, explicit tolerance",
    "callables, auto tolerance, all checks",
    "scripts, explicit tolerance",
    "scripts, an interpreter each",
)

Judge = Callable[[int], None]


@dataclass(frozen=True)
class Spent:
    """Seconds for some cases."""

    cases: int
    cpu_s: float
    wall_s: float

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.cases + other.cases, self.cpu_s + other.cpu_s, self.wall_s + other.wall_s
        )

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds per case."""
        return self.cpu_s / self.cases * 1e3

    @property
    def wall_ms(self) -> float:
        """Wall milliseconds per case."""
        return self.wall_s / self.cases * 1e3


@dataclass(frozen=True)
class Bound:
    """A ratio of CPU times per case that must not be exceeded."""

    what: str
    of: str
    to: str
    limit: float
    ratio: float

    @property
    def missed(self) -> bool:
        """Whether it is exceeded."""
        return self.ratio > self.limit


BOUNDS = (
    ("callables, explicit", EXPLICIT, ALONE, 1.25),
    ("callables, auto", AUTO, ALONE, 1.6),
    ("scripts", SCRIPTS, INTERPRETERS, 1 / 20),
)


# The candidates: each runs in a process of its own, started with --serve.


def plan(count: int, strategies: list[str]) -> tuple[list[Any], list[Any]]:
    """The cases, and those that the judge samples."""
    from gpuemu_flow.cases.op_schema import Dim, OpSchema, TensorDef
    from gpuemu_flow.cases.plan import plan_cases
    from gpuemu_flow.tasks.judge import sample_cases

    names = ("B", "M", "N")
    schema = OpSchema(
        dims=tuple(Dim(name, (size,)) for name, size in zip(names, SHAPE, strict=True)),
        inputs=(TensorDef("x", names),),
        outputs=(TensorDef("result", names),),
        fixed_shapes=(),
    )
    cases = plan_cases(
        schema,
        seed=SEED,
        dtype="float32",
        count=count,
        strategies=strategies,
        layouts=["contiguous"],
    )
    return cases, sample_cases(cases)


def compare_settings(tolerance: str) -> dict[str, Any]:
    """An op's ``compare`` slice."""
    return {
        "tolerance": tolerance,
        "tolerances": {} if tolerance == "auto" else TOLERANCE,
        "nan_policy": "match",
        "inf_policy": "match",
        "invariants": [],
        "shape_preserved_input": None,
    }


def load_function(path: Path) -> Callable[..., Any]:
    """The function of a script of the workspace, which is named as the file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., Any] = getattr(module, path.stem)
    return function


@contextmanager
def alone(folder: Path, cases: list[Any], _samples: list[Any]) -> Iterator[Judge]:
    """Everything in this process, as plainly as it can be written."""
    import numpy as np

    from gpuemu_flow.cases.generate import materialise
    from gpuemu_flow.numerics.compare import Policy, check_outputs
    from gpuemu_flow.runners import malloc
    from gpuemu_flow.types import Tolerance, Verdict

    malloc.tune()
    op = load_function(folder / "softmax.py")
    reference = load_function(folder / "softmax_reference.py")
    tolerance = {name: Tolerance(t["atol"], t["rtol"]) for name, t in TOLERANCE.items()}

    def judge(n: int) -> None:
        inputs = materialise(cases[n])
        actual = {"result": op(**inputs)}
        wide = {name: array.astype(np.float64) for name, array in inputs.items()}
        expected = {"result": reference(**wide)}
        result = check_outputs(
            actual,
            expected,
            tolerance=tolerance,
            policy=Policy(),
            expected_dtypes={"result": "float32"},
            inputs=inputs,
        )
        assert result.verdict is Verdict.PASSED, result

    yield judge


def trials(tolerance: str, kind: str, *, checked: bool) -> Callable[..., Any]:
    """A candidate that judges by `tasks.trial`."""

    @contextmanager
    def candidate(folder: Path, cases: list[Any], samples: list[Any]) -> Iterator[Judge]:
        from gpuemu_flow.runners.api import Checks, Program
        from gpuemu_flow.runners.pool import Pool
        from gpuemu_flow.tasks.trial import PLAIN, SESSIONS_PER_TRIAL, Subject, open_trials
        from gpuemu_flow.types import Verdict

        common = {"root": str(folder), "input_names": ("x",)}
        suffix = "_script" if kind == "script" else ""
        op, reference = (
            Program(
                kind,
                path=str(folder / f"{name}{suffix}.py"),
                function="" if kind == "script" else name,
                **common,
            )
            for name in ("softmax", "softmax_reference")
        )
        subject = Subject(
            "softmax", "float32", op, reference, compare_settings(tolerance), samples
        )
        staging = folder / f"staging-{os.getpid()}"
        staging.mkdir()
        everything = Checks(inputs_unchanged=True, guards=True, decoy=True, repeat=True)
        with Pool(SESSIONS_PER_TRIAL, staging=staging) as pool, open_trials(pool, subject) as open_:
            pool.start()

            def judge(n: int) -> None:
                thorough = checked and (n < CHECKED_FIRST or n % CHECKED_EVERY == 0)
                trial = open_.judge(cases[n], everything if thorough else PLAIN)
                assert trial.result.verdict is Verdict.PASSED, trial.result

            yield judge

    return candidate


@contextmanager
def interpreters(folder: Path, cases: list[Any], _samples: list[Any]) -> Iterator[Judge]:
    """A fresh interpreter per case for op and reference each; the rest as in `alone`."""
    import numpy as np

    from gpuemu_flow.cases.generate import materialise
    from gpuemu_flow.numerics.compare import Policy, check_outputs
    from gpuemu_flow.runners import malloc
    from gpuemu_flow.runners.codec import decode_response, encode_request
    from gpuemu_flow.types import Tolerance, Verdict

    malloc.tune()
    tolerance = {name: Tolerance(t["atol"], t["rtol"]) for name, t in TOLERANCE.items()}
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **plain_environment()}

    def call(script: str, inputs: dict[str, Any]) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, str(folder / script)],
            input=encode_request(inputs, {}),
            stdout=subprocess.PIPE,
            env=environment,
            check=True,
        )
        return decode_response(done.stdout, ())

    def judge(n: int) -> None:
        inputs = materialise(cases[n])
        wide = {name: array.astype(np.float64) for name, array in inputs.items()}
        result = check_outputs(
            call("softmax_script.py", inputs),
            call("softmax_reference_script.py", wide),
            tolerance=tolerance,
            policy=Policy(),
            expected_dtypes={"result": "float32"},
            inputs=inputs,
        )
        assert result.verdict is Verdict.PASSED, result

    yield judge


CANDIDATES: dict[str, Callable[..., Any]] = {
    ALONE: alone,
    EXPLICIT: trials("explicit", "callable", checked=False),
    AUTO: trials("auto", "callable", checked=True),
    SCRIPTS: trials("explicit", "script", checked=False),
    INTERPRETERS: interpreters,
}


def serve(name: str, folder: Path, count: int, strategies: list[str]) -> None:
    """Judge the next cases whenever a line on standard input says how many."""
    cases, samples = plan(count, strategies)
    done = 0
    with CANDIDATES[name](folder, cases, samples) as judge:
        print("ready", flush=True)
        for line in sys.stdin:
            number = int(line)
            before = os.times()
            cpu, wall = tree_cpu_s(os.getpid()), time.perf_counter()
            for n in range(done, done + number):
                judge(n)
            wall = time.perf_counter() - wall
            cpu = tree_cpu_s(os.getpid()) - cpu
            # Processes that have ended are seen by their parent only.
            after = os.times()
            cpu += after.children_user + after.children_system
            cpu -= before.children_user + before.children_system
            done += number
            print(json.dumps([number, cpu, wall]), flush=True)


# The benchmark.


class Server:
    """One candidate's process."""

    def __init__(self, name: str, folder: Path, count: int, strategies: list[str]) -> None:
        begin = time.perf_counter()
        arguments = ["--serve", name, "--folder", str(folder), "-n", str(count)]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments, "--strategies", *strategies],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=plain_environment(),
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{name}: the process did not start")
        self.name = name
        self.left = count
        self.spent = Spent(0, 0.0, 0.0)
        self.start_wall_s = time.perf_counter() - begin

    def turn(self, cases: int) -> None:
        """Judge the next cases."""
        number = min(cases, self.left)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name}: the process ended")
        self.spent += Spent(*json.loads(answer))
        self.left -= number

    def close(self) -> float:
        """End the process; CPU seconds of its whole life, workers included."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return usage.ru_utime + usage.ru_stime


@dataclass(frozen=True)
class Run:
    """One candidate in one repeat: what judging took, and the whole life of its processes."""

    spent: Spent
    life_cpu_s: float

    @property
    def start_cpu_s(self) -> float:
        """CPU seconds for starting and ending."""
        return self.life_cpu_s - self.spent.cpu_s


def measure(folder: Path, count: int, strategies: list[str], names: list[str]) -> dict[str, Run]:
    """All candidates once, taking turns."""
    counts = {n: min(count, INTERPRETER_CASES) if n == INTERPRETERS else count for n in names}
    servers = [Server(name, folder, counts[name], strategies) for name in names]
    turns = -(-count // CHUNK)
    while any(server.left for server in servers):
        for server in servers:
            if server.left:
                server.turn(-(-counts[server.name] // turns))
    return {server.name: Run(server.spent, server.close()) for server in servers}


def ratio(repeats: list[dict[str, Run]], of: str, to: str) -> float:
    """Median over the repeats of the ratio of CPU times per case."""
    return statistics.median(runs[of].spent.cpu_ms / runs[to].spent.cpu_ms for runs in repeats)


def with_start(repeats: list[dict[str, Run]], of: str, to: str, count: int) -> float:
    """The same ratio for whole processes that judge `count` cases, start and end included."""
    return statistics.median(
        (runs[of].start_cpu_s + runs[of].spent.cpu_ms * count / 1e3)
        / (runs[to].start_cpu_s + runs[to].spent.cpu_ms * count / 1e3)
        for runs in repeats
    )


def rows(repeats: list[dict[str, Run]], names: list[str], count: int) -> list[dict[str, Any]]:
    """Medians over the repeats, per candidate."""
    return [
        {
            "candidate": name,
            "cases": repeats[0][name].spent.cases,
            "cpu_ms": statistics.median(runs[name].spent.cpu_ms for runs in repeats),
            "wall_ms": statistics.median(runs[name].spent.wall_ms for runs in repeats),
            "start_cpu_s": statistics.median(runs[name].start_cpu_s for runs in repeats),
            "to_alone": ratio(repeats, name, ALONE),
            "to_alone_with_start": with_start(repeats, name, ALONE, count),
        }
        for name in names
    ]


def table(measured: list[dict[str, Any]], bounds: list[Bound], count: int) -> str:
    """The result for people."""
    lines = [
        f"{count} cases of softmax float32 {SHAPE}; ratios to the numerical work alone",
        f"{'':<40}{'ms per case':>18}{'ratio':>8}{'start, s':>10}{'ratio with start':>18}",
        f"{'':<40}{'CPU':>9}{'wall':>9}{'CPU':>8}{'CPU':>10}{'CPU':>18}",
    ]
    for row in measured:
        note = f"  from {row['cases']} cases" if row["cases"] != count else ""
        lines.append(
            f"{row['candidate']:<40}{row['cpu_ms']:>9.2f}{row['wall_ms']:>9.2f}"
            f"{row['to_alone']:>8.2f}{row['start_cpu_s']:>10.2f}"
            f"{row['to_alone_with_start']:>18.2f}{note}"
        )
    for bound in bounds:
        missed = "  missed" if bound.missed else ""
        told = (
            f"{1 / bound.ratio:.1f} times faster than {bound.to}, at least {1 / bound.limit:.0f}"
            if bound.limit < 1
            else f"{bound.ratio:.3f} times {bound.to}, at most {bound.limit:g}"
        )
        lines.append(f"  {bound.what}: {told}{missed}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--cases", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--strategies", nargs="+", default=["uniform"])
    parser.add_argument("--only", nargs="+", choices=list(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--serve", choices=list(CANDIDATES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.serve:
        serve(options.serve, options.folder, options.cases, options.strategies)
        return 0
    names = list(dict.fromkeys([ALONE, *options.only]))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        workspaces.write_softmax(folder)
        repeats = [
            measure(folder, options.cases, options.strategies, names)
            for _ in range(options.repeats)
        ]
    measured = rows(repeats, names, options.cases)
    bounds = [
        Bound(what, of, to, limit, ratio(repeats, of, to))
        for what, of, to, limit in BOUNDS
        if of in names and to in names
    ]
    passed = not any(bound.missed for bound in bounds)
    if options.json:
        report = {
            "benchmark": "cases",
            "passed": passed,
            "cases": options.cases,
            "shape": SHAPE,
            "strategies": options.strategies,
            "repeats": options.repeats,
            "bounds": [{**asdict(bound), "missed": bound.missed} for bound in bounds],
            "rows": measured,
        }
        print(json.dumps(report, indent=2))
    else:
        print(table(measured, bounds, options.cases))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
