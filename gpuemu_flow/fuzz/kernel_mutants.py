"""Plant bugs in the PTX of a compiled op, and count the bugs that the op's check finds."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path
from threading import Event

import msgspec

from gpuemu_flow.emulator.mutants import PtxMutant, plant_in_ptx
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import FlowError
from gpuemu_flow.fuzz.subjects import OpSubject, dtypes_of, op_subject, open_ordered
from gpuemu_flow.judging.case_evaluator import SESSIONS_PER_EVALUATOR, CaseEvaluator
from gpuemu_flow.judging.subject import Subject
from gpuemu_flow.numerics.output_mutants import MutantResult
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.runners.api import EMULATED, Program
from gpuemu_flow.runners.emulated import RECORD
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.types import BAD, Case, Verdict

MUTANT_FILE = "mutant.ptx"


@dataclass
class KernelMutation:
    """The result of planting bugs in an op's compiled kernels."""

    planted: dict[str, PtxMutant] = field(default_factory=dict)
    results: list[MutantResult] = field(default_factory=list)
    untold: int = 0


def is_compiled(program: Program) -> bool:
    """Tell whether a program runs kernels from PTX, in which bugs can be planted."""
    return program.kind in EMULATED or (program.kind == "triton" and bool(program.argv))


def plant_in_file(program: Program) -> Iterator[PtxMutant]:
    """Plant bugs in all kernels that a program of kind ``ptx`` or ``cuda`` launches."""
    described = json.loads(program.argv[0])
    launches = described.get("launches") or [described]
    data = Path(program.path).read_bytes()
    for entry in dict.fromkeys(str(launch.get("entry", "")) for launch in launches):
        yield from plant_in_ptx(data, entry, program.path)


def try_kernel_mutants(
    workspace: Workspace, op: str, cases: dict[str, list[Case]], cancel: Event | None
) -> KernelMutation:
    """Plant bugs in an op's PTX; run the op with each bug until one of the cases reveals it."""
    found = KernelMutation()
    subjects = {dtype: op_subject(workspace, op, dtype) for dtype in dtypes_of(workspace, op)}
    for dtype, subject in subjects.items():
        if is_compiled(subject.subject.op):
            with tempfile.TemporaryDirectory() as folder, Pool(
                SESSIONS_PER_EVALUATOR, staging=workspace.cache.staging
            ) as pool:  # fmt: skip
                _try_all(
                    workspace, pool, subject, Path(folder).resolve(), cases[dtype], cancel, found
                )
    return found


def _try_all(
    workspace: Workspace, pool: Pool, subject: OpSubject, folder: Path, cases: Sequence[Case],
    cancel: Event | None, found: KernelMutation,
) -> None:  # fmt: skip
    if subject.subject.op.kind == "triton":
        _try_triton(workspace, pool, subject.subject, folder, cases, cancel, found)
        return
    program = subject.subject.op
    with open_ordered(workspace, pool, subject.subject, cancel) as evaluator:
        passing = _passing(evaluator, cases)
    found.untold += len(cases) - len(passing)
    try:
        planted = list(plant_in_file(program)) if passing else []
    except (OSError, FlowError):
        return
    file = folder / MUTANT_FILE
    changed = replace(subject.subject, op=msgspec.structs.replace(program, path=str(file)))
    for mutant in planted:
        found.planted.setdefault(mutant.name, mutant)
        file.write_bytes(mutant.data)
        with open_ordered(workspace, pool, changed, cancel) as evaluator:
            found.results += _try_one(evaluator, mutant, passing)


def _try_triton(
    workspace: Workspace, pool: Pool, subject: Subject, folder: Path, cases: Sequence[Case],
    cancel: Event | None, found: KernelMutation,
) -> None:  # fmt: skip
    """Plant bugs in the PTX that Triton makes, in one worker, so that Triton compiles only once."""
    (folder / RECORD).mkdir()
    program = msgspec.structs.replace(subject.op, argv=(*subject.op.argv, str(folder)))
    if program.sandbox is not None:
        writable = (*program.sandbox.writable, str(folder))
        wall = msgspec.structs.replace(program.sandbox, writable=writable)
        program = msgspec.structs.replace(program, sandbox=wall)
    with open_ordered(workspace, pool, replace(subject, op=program), cancel) as evaluator:
        passing = _passing(evaluator, cases)
        found.untold += len(cases) - len(passing)
        if not passing:
            return
        for made in sorted((folder / RECORD).iterdir()):
            try:
                planted = list(plant_in_ptx(made.read_bytes(), "", made.name))
            except (OSError, FlowError):
                continue
            for mutant in planted:
                found.planted.setdefault(mutant.name, mutant)
                file = folder / made.name
                file.write_bytes(mutant.data)
                found.results += _try_one(evaluator, mutant, passing)
                file.unlink()


def _passing(evaluator: CaseEvaluator, cases: Sequence[Case]) -> list[Case]:
    """Choose the cases that the unchanged op passes."""
    return [c for c in cases if evaluator.judge(c).result.verdict is Verdict.PASSED]


def _try_one(
    evaluator: CaseEvaluator, mutant: PtxMutant, cases: Sequence[Case]
) -> Iterator[MutantResult]:
    for case in cases:
        killed = evaluator.judge(case).result.verdict in BAD
        yield MutantResult(mutant.name, case.seed, killed)
        if killed:
            return
