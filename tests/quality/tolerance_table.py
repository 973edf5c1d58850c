"""Kills and false alarms of several tolerances on the same mutants and controls; prints a table.

    python tests/quality/tolerance_table.py [--seed 42]

The cases, checks and verdicts are those of a default run; only the tolerance differs. "Values only"
leaves out what the runner finds without comparing values, which no tolerance decides.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from controls import CONTROLS, install
from mutants import MUTANTS, plant
from oracle import search_all


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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=42)
    seed = parser.parse_args().seed
    mutants = [(m.id, m.op, partial(plant, m)) for m in MUTANTS]
    right = [(c.id, c.op, partial(install, c)) for c in CONTROLS]
    right += [(op, op, lambda _: None) for op in sorted({m.op for m in MUTANTS})]
    print("| tolerance | kills | of | false alarms | of |")
    print("|---|---|---|---|---|")
    for name, compare in CANDIDATES.items():
        with tempfile.TemporaryDirectory() as folder:
            found = search_all(Path(folder, "m"), mutants, seed=seed, **compare)
            alarms = search_all(Path(folder, "c"), right, seed=seed, **compare)
        kills = sum(f.killed for f in found.values())
        false = sum(f.killed for f in alarms.values())
        print(f"| {name} | {kills} | {len(found)} | {false} | {len(alarms)} |", flush=True)


if __name__ == "__main__":
    main()
