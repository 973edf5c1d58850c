"""The score of an op that is a compiled kernel: bugs planted in its PTX, found or not."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

from gpuemu_flow.emulator.mutants import PtxMutant, plant_in_ptx
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import FlowError
from gpuemu_flow.fuzz.subjects import OpSubject, dtypes_of, op_subject
from gpuemu_flow.judging.case_evaluator import SESSIONS_PER_EVALUATOR, open_evaluator
from gpuemu_flow.numerics.output_mutants import MutantResult
from gpuemu_flow.runners.api import Program
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.types import BAD, Case

PTX_KINDS = ("ptx", "cuda")
"""Kinds of programs whose path is a PTX file."""


def kernel_mutants(program: Program) -> list[PtxMutant]:
    """Make the mutants of all kernels that a program launches; none where it is no PTX."""
    if program.kind not in PTX_KINDS:
        return []
    described = json.loads(program.argv[0])
    launches = described.get("launches") or [described]
    data = Path(program.path).read_bytes()
    found: dict[str, PtxMutant] = {}
    for entry in dict.fromkeys(str(launch.get("entry", "")) for launch in launches):
        found.update((m.name, m) for m in plant_in_ptx(data, entry, program.path))
    return list(found.values())


def try_kernel_mutants(
    workspace: Workspace, op: str, cases: dict[str, list[Case]], cancel: Event | None
) -> tuple[list[PtxMutant], list[MutantResult]]:
    """Run an op with each bug on its cases, until one of them finds it.

    Parameters
    ----------
    workspace : Workspace
    op : str
    cases : dict of str to list of Case
        By dtype.
    cancel : Event or None

    Returns
    -------
    tuple of list
        The mutants, and what came of each on each case that was tried.
    """
    subjects = {dtype: op_subject(workspace, op, dtype) for dtype in dtypes_of(workspace, op)}
    mutants: dict[str, PtxMutant] = {}
    results: list[MutantResult] = []
    with tempfile.TemporaryDirectory() as folder:
        for dtype, subject in subjects.items():
            try:
                made = kernel_mutants(subject.subject.op)
            except (OSError, FlowError):
                continue
            for mutant in made:
                mutants.setdefault(mutant.name, mutant)
                file = Path(folder) / "mutant.ptx"
                file.write_bytes(mutant.data)
                results += _try_one(workspace, subject, file, mutant, cases[dtype], cancel)
    return list(mutants.values()), results


def _try_one(
    workspace: Workspace, subject: OpSubject, file: Path, mutant: PtxMutant, cases: list[Case],
    cancel: Event | None,
) -> Iterator[MutantResult]:  # fmt: skip
    program = replace(subject.subject.op, path=str(file))
    changed = replace(subject.subject, op=program)
    with Pool(SESSIONS_PER_EVALUATOR, staging=workspace.cache.staging) as pool, open_evaluator(
        pool, changed, cancel
    ) as evaluator:  # fmt: skip
        for case in cases:
            killed = evaluator.judge(case).result.verdict in BAD
            yield MutantResult(mutant.name, case.seed, killed)
            if killed:
                return
