"""`run` with nothing to do, and after one edit, among 1,000 ops; exits 1 when a bound is missed.

The bounds are on the median CPU time of the whole command, its workers included.

    python benchmarks/bench_noop.py [--ops 1000] [--rounds 7] [--folder DIR] [--json]

The tool is measured as its users have it: the console script of a regular installation, made from
this checkout in a virtual environment below the folder. The cold run takes a minute; with --folder
it is kept for the next time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import workspaces
from installation import install
from processes import CommandFailedError, Cost, output_of, plain_environment, timed

BOUNDS_S = {"nothing to do": 0.15, "one edit": 1.0}


def measure(folder: Path, ops: int, rounds: int) -> dict[str, list[Cost]]:
    """Return the costs of each round."""
    command = [str(install(folder / "installed") / "gpuemu-flow"), "run"]
    environment = plain_environment()
    place = folder / str(ops)
    if not place.exists():
        workspaces.write_scripts(place, ops)
        workspaces.write_gpuemu(place, ops)
    for _ in range(2):  # the second finds all settled
        said = output_of(command, place, environment)
    if not said.startswith("up to date"):
        raise CommandFailedError(f"{place} always finds something to do")
    costs: dict[str, list[Cost]] = {name: [] for name in BOUNDS_S}
    for _ in range(rounds):
        costs["nothing to do"].append(timed(command, place, environment))
        workspaces.change_leaf(place)
        costs["one edit"].append(timed(command, place, environment))
    return costs


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="keep what is built here, and use it again")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            costs = measure(folder.resolve(), options.ops, options.rounds)
        except (CommandFailedError, subprocess.SubprocessError, OSError) as error:
            print(error, file=sys.stderr)
            return 2
    rows = [
        {
            "command": name,
            "cpu_s": statistics.median(cost.cpu_s for cost in found),
            "wall_s": statistics.median(cost.wall_s for cost in found),
            "bound_s": BOUNDS_S[name],
        }
        for name, found in costs.items()
    ]
    passed = all(row["cpu_s"] <= row["bound_s"] for row in rows)
    if options.json:
        report = {"benchmark": "noop", "passed": passed, "ops": options.ops, "rows": rows}
        print(json.dumps(report, indent=2))
    else:
        print(f"run among {options.ops:,} ops: CPU, wall, bound on CPU; seconds")
        for row in rows:
            print("{command:<16}{cpu_s:>8.3f}{wall_s:>8.3f}{bound_s:>8.2f}".format(**row))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
