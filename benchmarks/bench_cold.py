"""What a first verdict costs in CPU time, all processes included; exits 1 when a bound is missed.

The cold run of the repository's workspace, beside a plain script: the same ops, dtypes and cases,
PCG64's numbers, the reference in float64, and numpy's allclose. One op in one dtype from an empty
cache. One edit among 1,000 ops, and a run with nothing to do there.

    python benchmarks/bench_cold.py [--rounds 3] [--only TEXT] [--folder DIR] [--json]

With --folder, the 1,000 ops are kept for the next time. BLAS has one thread everywhere.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import workspaces
from bench_house import ONE_OP
from installation import CHECKOUT
from processes import CommandFailedError, output_of, plain_environment, timed

RATIO, ONE_DTYPE, EDIT, NOTHING = "cold / plain", "one op, one dtype", "one edit", "nothing to do"
BOUNDS = {RATIO: 8.0, ONE_DTYPE: 0.8, EDIT: 1.0, NOTHING: 0.15}
COMMAND = [str(Path(sys.executable).with_name("gpuemu-flow")), "run"]

CASES = """\
import json, sys
from pathlib import Path
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.cases.plan import plan_cases
from gpuemu_flow.model.decoding import convert

workspace, found = Workspace(Path.cwd()), []
ops = {op.name: op for op in workspace.config.ops}
for spec in workspace.graph.tasks.values():
    if spec.stage == "generate":
        op = ops[spec.subject]
        asked = {name: spec.params[name] for name in ("strategies", "layouts", "seed", "count")}
        cases = plan_cases(convert(spec.settings["schema"], OpSchema), dtype=spec.dtype, **asked)
        inputs = [[[i.shape, i.dtype, i.low, i.high] for i in case.inputs] for case in cases]
        programs = [[str(p.path), p.function] for p in (op.op, op.reference)]
        found.append([spec.subject, programs, op.kwargs, inputs])
json.dump(found, sys.stdout)
"""
"""Prints the planned cases, so that the plain script runs the same shapes."""

PLAIN = """\
import importlib.util, inspect, json, os, sys
import ml_dtypes
import numpy as np


def function(program):
    path, name = program
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    own = [f for n, f in vars(loaded).items() if n[0] != "_" and inspect.isfunction(f)]
    return getattr(loaded, name) if name else [f for f in own if f.__module__ == spec.name][-1]


def draw(shape, dtype, low, high):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if kind.kind in "iu":
        return random.integers(low if low is not None else -8, high or 8, shape, dtype=kind)
    return random.standard_normal(shape).astype(kind)


def listed(found):
    found = list(found.values()) if isinstance(found, dict) else found
    return found if isinstance(found, (tuple, list)) else [found]


random, cases = np.random.default_rng(1), 0
np.seterr(all="ignore")
for _, (op, reference), kwargs, plans in json.load(open("plan.json")):
    op, reference = function(op), function(reference)
    for plan in plans:
        inputs = [draw(*each) for each in plan]
        wide = [x if x.dtype.kind in "iu" else x.astype(np.float64) for x in inputs]
        got, expected = op(*inputs, **kwargs), reference(*wide, **kwargs)
        for a, b in zip(listed(got), listed(expected)):
            np.allclose(np.asarray(a, np.float64), b, 1e-2, 1e-2)
        cases += 1
print(cases)
"""


def prepared(folder: Path, environment: dict[str, str]) -> Path:
    """A copy of the repository's workspace with the plain script and its plan."""
    for name in ("scripts", "schemas"):
        shutil.copytree(CHECKOUT / name, folder / name)
    shutil.copy(CHECKOUT / "gpuemu.toml", folder)
    plan = output_of([sys.executable, "-c", CASES], folder, environment)
    folder.joinpath("plan.json").write_text(plan)
    folder.joinpath("plain.py").write_text(PLAIN)
    return folder


def cold(place: Path, environment: dict[str, str]) -> float:
    """CPU seconds of `run` from an empty cache."""
    old = place / ".gpuemu-cache"
    if old.exists():  # moved away: a file system makes files slower where it has just deleted many
        old.rename(tempfile.mkdtemp(dir=place.parent))
    return timed(COMMAND, place, environment).cpu_s


def cold_ratio(folder: Path, environment: dict[str, str], rounds: int) -> list[float]:
    """The cold run's CPU time by the plain script's, which follows it at once."""
    place, found = prepared(folder, environment), []
    for _ in range(rounds):
        tool = cold(place, environment)
        plain = timed([sys.executable, "plain.py"], place, environment).cpu_s
        print(f"  cold run {tool:.2f} s, plain script {plain:.2f} s", file=sys.stderr)
        found.append(tool / plain)
    return found


def one_dtype(place: Path, environment: dict[str, str], rounds: int) -> list[float]:
    """The README's op in float32 alone."""
    for name, text in ONE_OP.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace('["float32", "float16"]', '["float32"]'))
    return [cold(place, environment) for _ in range(rounds)]


def among_many(place: Path, environment: dict[str, str], rounds: int) -> dict[str, list[float]]:
    """One edit, and nothing to do, among 1,000 ops."""
    if not place.exists():
        workspaces.write_scripts(place, 1_000)
        workspaces.write_gpuemu(place, 1_000)
    found: dict[str, list[float]] = {EDIT: [], NOTHING: []}
    for _ in range(2):  # the second finds all settled
        said = output_of(COMMAND, place, environment)
    if not said.startswith("up to date"):
        raise CommandFailedError(f"{place} always finds something to do")
    for _ in range(rounds):
        found[NOTHING].append(timed(COMMAND, place, environment).cpu_s)
        workspaces.change_leaf(place)
        found[EDIT].append(timed(COMMAND, place, environment).cpu_s)
    return found


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="measure only what holds this text")
    parser.add_argument("--folder", type=Path, help="keep the 1,000 ops here")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(argv)
    environment = plain_environment() | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    asked = {name for name in BOUNDS if options.only in name}
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        here, kept = Path(temporary).resolve(), (options.folder or Path(temporary)).resolve()
        environment["XDG_CACHE_HOME"] = str(here / "cache")
        try:
            for name in ("workspace", "one"):
                here.joinpath(name).mkdir()
            if RATIO in asked:
                found[RATIO] = cold_ratio(here / "workspace", environment, options.rounds)
            if ONE_DTYPE in asked:
                found[ONE_DTYPE] = one_dtype(here / "one", environment, options.rounds)
            if asked & {EDIT, NOTHING}:
                found |= among_many(kept / "1000", environment, options.rounds)
        except (CommandFailedError, OSError) as error:
            print(error, file=sys.stderr)
            return 2
    rows = [
        {"what": name, "found": statistics.median(each), "bound": BOUNDS[name]}
        for name, each in found.items()
    ]
    passed = all(row["found"] <= row["bound"] for row in rows)
    if options.json:
        print(json.dumps({"benchmark": "cold", "passed": passed, "rows": rows}, indent=2))
    else:
        print("CPU seconds of all processes (the first: by the plain script's), and the bound")
        for row in rows:
            print("{what:<20}{found:>8.3f}{bound:>8.2f}".format(**row))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
