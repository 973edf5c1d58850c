"""Prints the verdicts of default runs as JSON: what must not depend on a machine's BLAS.

    python tests/quality/verdicts.py > verdicts.json

All ops of the two workspaces, every case with its verdict, and of each op one planted bug, found or
not. `.ci/blas_matrix.sh` compares them under several kernels of OpenBLAS.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path

from mutants import MUTANTS, Mutant, load_tables, plant
from oracle import REPOSITORY, copy_workspace, designed, search_all, subjects

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.subjects import op_names
from gpuemu_flow.judge.case_evaluator import SESSIONS_PER_EVALUATOR, open_evaluator
from gpuemu_flow.workers.pool import Pool

PLAIN = Path(__file__).parent / "plain_ops"


def verdicts(folder: Path, source: Path) -> dict[str, list[str]]:
    """The verdict of every case of a default run, by op and dtype."""
    copy = copy_workspace(folder / "ops", source)
    found: dict[str, list[str]] = {}
    with Pool(SESSIONS_PER_EVALUATOR) as pool:
        for op in op_names(Workspace(source)):
            for item in subjects(copy, op):
                with open_evaluator(pool, item.subject) as evaluator:
                    found[f"{op}:{item.subject.dtype}"] = [
                        evaluator.judge(case, checks).result.verdict.value
                        for case, checks in designed(item, 42)
                    ]
    return found


def kills(folder: Path, source: Path, mutants: tuple[Mutant, ...]) -> dict[str, bool]:
    """Tell for each op whether a default run finds the first bug of its table."""
    first = {m.op: m for m in reversed(mutants)}
    variants = [(m.id, m.op, partial(plant, m)) for m in first.values()]
    return {n: f.killed for n, f in search_all(folder, variants, source=source).items()}


def main() -> None:
    """Measure both workspaces and print."""
    found: dict[str, object] = {}
    for source, mutants in ((REPOSITORY, MUTANTS), (PLAIN, load_tables(PLAIN / "mutants"))):
        with tempfile.TemporaryDirectory() as folder:
            found.update(verdicts(Path(folder, "right"), source))
            found.update(kills(Path(folder, "wrong"), source, mutants))
    json.dump(found, sys.stdout, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
