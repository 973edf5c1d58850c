"""Kills and false alarms of several tolerances on the same mutants and controls; prints a table.

    python tests/quality/tolerance_table.py [--seed 42]

The cases, checks and verdicts are those of a default run; only the tolerance differs. "Values only"
leaves out what the runner finds without comparing values, which no tolerance decides.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from controls import CONTROLS, install
from mutants import MUTANTS, plant
from oracle import copy_workspace, search_all

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.measures import calibrate_op
from gpuemu_flow.numerics.calibrate import tolerances


def explicit(**pairs: tuple[float, float]) -> dict[str, Any]:
    """A ``compare`` configuration of explicit tolerances, (atol, rtol) per dtype."""
    table = {name: {"atol": atol, "rtol": rtol} for name, (atol, rtol) in pairs.items()}
    return {"tolerance": "explicit", "tolerances": table}


HALF = ("float16", "bfloat16")
ALL = ("float32", "float64", *HALF)
CANDIDATES: dict[str, dict[str, Any]] = {
    "auto (the default)": {},
    "documented table": {"tolerance": "table", "tolerances": {}},
    "allclose(1e-5, 1e-2)": explicit(**dict.fromkeys(ALL, (1e-5, 1e-2))),
    "KernelBench": explicit(
        float32=(1e-4, 1e-4), float64=(1e-4, 1e-4), **dict.fromkeys(HALF, (1e-2, 1e-2))
    ),
    "torch.testing": explicit(
        float32=(1e-5, 1.3e-6), float64=(1e-7, 1e-7), float16=(1e-5, 1e-3), bfloat16=(1e-5, 1.6e-2)
    ),
}


CALIBRATED = "calibrated"
CALIBRATION_CASES = 100

Variant = tuple[str, str, Callable[[Path], object]]


def calibrated(folder: Path, op: str) -> dict[str, Any]:
    """Return the ``compare`` configuration that ``calibrate`` suggests for an op of the
    workspace."""
    workspace = Workspace(folder, environ={"HOME": str(folder)})
    found = tolerances(calibrate_op(workspace, op, cases=CALIBRATION_CASES))
    workspace.cache.close()
    return explicit(**{dtype: (t.atol, t.rtol) for dtype, t in found.items()})


def count(folder: Path, name: str, variants: list[Variant], seed: int) -> int:
    """Count the variants that fail under a candidate."""
    if name != CALIBRATED:
        return sum(
            f.killed for f in search_all(folder, variants, seed=seed, **CANDIDATES[name]).values()
        )
    total = 0
    for op in sorted({op for _, op, _ in variants}):
        compare = calibrated(copy_workspace(folder / f"calibrate-{op}"), op)
        own = [variant for variant in variants if variant[1] == op]
        found = search_all(folder / op, own, seed=seed, **compare)
        total += sum(f.killed for f in found.values())
    return total


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--only", action="append", choices=[*CANDIDATES, CALIBRATED])
    arguments = parser.parse_args()
    mutants: list[Variant] = [(m.id, m.op, partial(plant, m)) for m in MUTANTS]
    right: list[Variant] = [(c.id, c.op, partial(install, c)) for c in CONTROLS]
    right += [(op, op, lambda _: None) for op in sorted({m.op for m in MUTANTS})]
    print("| tolerance | kills | of | false alarms | of |")
    print("|---|---|---|---|---|")
    for name in arguments.only or [*CANDIDATES, CALIBRATED]:
        with tempfile.TemporaryDirectory() as folder:
            kills = count(Path(folder, "m"), name, mutants, arguments.seed)
            false = count(Path(folder, "c"), name, right, arguments.seed)
        print(f"| {name} | {kills} | {len(mutants)} | {false} | {len(right)} |", flush=True)


if __name__ == "__main__":
    main()
