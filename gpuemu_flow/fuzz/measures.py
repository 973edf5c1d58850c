"""Measure an op's check: which bugs it misses, and which tolerances the op needs."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.emulator.mutants import RECORD, PtxMutant, entry_of, plant_in_ptx
from gpuemu_flow.fuzz.subjects import OpSubject, dtypes_of, op_subject, open_ordered, select_ops
from gpuemu_flow.judge.case_evaluator import SESSIONS_PER_EVALUATOR, CaseEvaluator, Prepared
from gpuemu_flow.judge.fuzz_results import Mutation
from gpuemu_flow.judge.subject import Subject
from gpuemu_flow.model.errors import FlowError, Problem, RunnerError
from gpuemu_flow.model.types import BAD, Case, MeasuredErrors, Verdict
from gpuemu_flow.model.verdicts import Tally
from gpuemu_flow.numerics.calibrate import (
    NOT_MEASURED,
    Calibration,
    calibrate,
    measured_outputs,
    observe,
)
from gpuemu_flow.numerics.output_mutants import OUTPUT_MUTANTS, MutantResult, has_finite, plant
from gpuemu_flow.numerics.output_mutants import score as mutation_score
from gpuemu_flow.numerics.trivial import Arrays, TrivialResult, assess, trivial_candidates
from gpuemu_flow.tasks.base import GenerateParams, params_of
from gpuemu_flow.workers.api import EMULATED, Program
from gpuemu_flow.workers.pool import Pool


def _cases(workspace: Workspace, subject: OpSubject, count: int | None = None) -> list[Case]:
    """Return the cases of a default run, or the first `count` cases of the same sequence."""
    name = f"generate:{subject.subject.name}:{subject.subject.dtype}"
    count = count or params_of(GenerateParams, workspace.graph.tasks[name].params).count
    return list(islice(subject.cases(), count))


@contextlib.contextmanager
def _all_evaluators(
    workspace: Workspace, op: str, cancel: Event | None, **settings: Any
) -> Iterator[Iterator[tuple[OpSubject, CaseEvaluator]]]:
    """Yield one iterator over the dtypes of an op, and afterwards end the workers. For each dtype,
    the iterator yields a pair: the op in this dtype, and an evaluator that judges the op's cases in
    warm programs, under its own settings with those of `settings` in place."""
    workspace.cache.create()

    def each() -> Iterator[tuple[OpSubject, CaseEvaluator]]:
        for dtype in dtypes_of(workspace, op):
            subject = op_subject(workspace, op, dtype)
            judged = replace(subject.subject, compare=replace(subject.subject.compare, **settings))
            with open_ordered(workspace, pool, judged, cancel) as evaluator:
                yield subject, evaluator

    with Pool(SESSIONS_PER_EVALUATOR) as pool:
        yield each()


def mutate(workspace: Workspace, op: str, *, cancel: Event | None = None) -> Mutation:
    """Plant known bugs in an op's outputs on default cases, and measure how many the check finds.
    Raises UsageError: ``unknown-op``. Raises RunnerError: ``needs-missing``."""
    select_ops(workspace, [op])
    results: list[MutantResult] = []
    trivial: list[TrivialResult] = []
    count = 0
    tried: dict[str, list[Case]] = {}
    with _all_evaluators(workspace, op, cancel) as each:
        for subject, evaluator in each:
            judged = tried.setdefault(subject.subject.dtype, [])
            previous: Arrays | None = None
            for case in _cases(workspace, subject):
                try:
                    prepared = evaluator.prepare(case)
                except RunnerError:
                    continue
                if any(array.dtype.kind == "c" for array in prepared.expected.values()):
                    continue  # no bug is planted in complex numbers yet
                if not has_finite(prepared.expected):
                    continue
                count += 1
                judged.append(case)
                results += _mutant_results(prepared, evaluator)
                trivial += _trivial_results(prepared, previous)
                previous = prepared.expected
    found = try_kernel_mutants(workspace, op, tried, cancel)
    planted = list(found.planted.values())
    kernel = mutation_score(found.results, planted) if planted else None
    untold = found.untold
    return Mutation(op, mutation_score(results), assess(trivial), count, kernel, untold)


def _mutant_results(prepared: Prepared, evaluator: CaseEvaluator) -> Iterator[MutantResult]:
    for mutant in OUTPUT_MUTANTS:
        outputs = plant(
            mutant,
            prepared.inputs,
            prepared.expected,
            seed=prepared.case.seed,
            dtypes=prepared.dtypes,
            evaluate=evaluator,
        )
        if outputs is not None:
            killed = prepared.check(outputs).verdict in BAD
            yield MutantResult(mutant.name, prepared.case.seed, killed)


def _trivial_results(prepared: Prepared, previous: Arrays | None) -> Iterator[TrivialResult]:
    case = prepared.case
    candidates = trivial_candidates(
        prepared.inputs, prepared.expected, dtypes=prepared.dtypes, previous=previous
    )
    for candidate in candidates:
        passed = prepared.check(candidate.outputs).verdict is Verdict.PASSED
        yield TrivialResult(candidate.name, case.seed, case.strategy, passed)


def calibrate_op(
    workspace: Workspace, op: str, *, cases: int, cancel: Event | None = None
) -> list[Calibration]:
    """Suggest tolerances from the errors of the op as it is now; useful only if the op is correct.
    Raises UsageError: ``unknown-op``. Raises RunnerError: ``calibration-failed`` if the op or its
    reference ends in an error, or if the op is wrong in every case; ``needs-missing``."""
    select_ops(workspace, [op])
    observations: list[MeasuredErrors] = []
    with _all_evaluators(workspace, op, cancel, tolerance="auto", tolerances={}) as each:
        for subject, evaluator in each:
            verdicts = Tally()
            contracts = subject.subject.compare.outputs
            for case in _cases(workspace, subject, cases):
                if case.strategy in NOT_MEASURED:
                    continue
                evaluated = evaluator.judge(case)
                if evaluated.result.verdict is Verdict.ERROR:
                    message = evaluated.result.failures[0].message
                    raise RunnerError(Problem("calibration-failed", f"{op}: {message}"))
                verdicts.add(evaluated.result)
                names = measured_outputs(contracts, evaluated.actual)
                given = {name: evaluated.actual[name] for name in names}
                observations += observe(given, evaluated.expected)
            refuse_wrong(op, subject.subject.dtype, verdicts)
    return calibrate(observations)


def refuse_wrong(op: str, dtype: str, verdicts: Tally) -> None:
    """Raise RunnerError ``calibration-failed`` if an op is wrong in every case of a dtype."""
    if verdicts.cases and verdicts.counts.get(Verdict.FAILED, 0) == verdicts.cases:
        text = f"{op} is wrong in all {verdicts.cases} cases of {dtype}"
        hint = f"make it right first: `gpuemu-flow run {op}`; a tolerance would hide it"
        raise RunnerError(Problem("calibration-failed", text, hint))


# Plant bugs in the PTX of a compiled op, and count the bugs that the op's check finds.


MUTANT_FILE = "mutant.ptx"


class KernelMutation(Struct):
    """The result of planting bugs in an op's compiled kernels."""

    planted: dict[str, PtxMutant] = field(default_factory=dict)
    results: list[MutantResult] = field(default_factory=list)
    untold: int = 0


def is_compiled(program: Program) -> bool:
    by_triton = program.kind == "triton" and bool(program.argv)
    return program.kind in EMULATED or by_triton or bool(program.gpu_folder)


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
            with tempfile.TemporaryDirectory() as folder, Pool(SESSIONS_PER_EVALUATOR) as pool:
                _try_all(
                    workspace, pool, subject, Path(folder).resolve(), cases[dtype], cancel, found
                )
    return found


def _try_all(
    workspace: Workspace, pool: Pool, subject: OpSubject, folder: Path, cases: Sequence[Case],
    cancel: Event | None, found: KernelMutation,
) -> None:  # fmt: skip
    program = subject.subject.op
    if program.kind == "triton":
        argv = (*program.argv, str(folder))
        _try_made(workspace, pool, subject.subject, folder, cases, cancel, found, argv=argv)
        return
    if program.gpu_folder:
        env = {**program.env, "GPUEMU_PLANTED": str(folder)}
        _try_made(workspace, pool, subject.subject, folder, cases, cancel, found, env=env)
        return
    with open_ordered(workspace, pool, subject.subject, cancel) as evaluator:
        passing = _passing(evaluator, cases)
    found.untold += len(cases) - len(passing)
    try:
        planted = list(plant_in_file(program)) if passing else []
    except (OSError, FlowError):
        return
    file = folder / MUTANT_FILE
    changed = replace(subject.subject, op=replace(program, path=str(file)))
    for mutant in planted:
        found.planted.setdefault(mutant.name, mutant)
        file.write_bytes(mutant.data)
        with open_ordered(workspace, pool, changed, cancel) as evaluator:
            found.results += _try_one(evaluator, mutant, passing)


def _try_made(
    workspace: Workspace, pool: Pool, subject: Subject, folder: Path, cases: Sequence[Case],
    cancel: Event | None, found: KernelMutation, **told: Any,
) -> None:  # fmt: skip
    """Plant bugs in the PTX that the op launches; `told` tells it the folder. Triton's are tried in
    one worker, so that it compiles only once; host code keeps the kernels that it has loaded."""
    (folder / RECORD).mkdir()
    program = replace(subject.op, **told)
    if program.sandbox is not None:
        writable = (*program.sandbox.writable, str(folder))
        program = replace(program, sandbox=replace(program.sandbox, writable=writable))
    changed = replace(subject, op=program)
    with open_ordered(workspace, pool, changed, cancel) as evaluator:
        passing = _passing(evaluator, cases)
        found.untold += len(cases) - len(passing)
        if passing and not program.gpu_folder:
            for mutant in _planted_in(folder, found):
                found.results += _try_one(evaluator, mutant, passing)
    if passing and program.gpu_folder:
        for mutant in _planted_in(folder, found):
            with open_ordered(workspace, pool, changed, cancel) as evaluator:
                found.results += _try_one(evaluator, mutant, passing)


def _planted_in(folder: Path, found: KernelMutation) -> Iterator[PtxMutant]:
    """Plant bugs in each recorded kernel in turn; a bug's file lies there until the next."""
    for made in sorted((folder / RECORD).iterdir()):
        try:
            text = made.read_bytes()
            planted = list(plant_in_ptx(text, entry_of(text), made.name))
        except (OSError, FlowError):
            continue
        for mutant in planted:
            found.planted.setdefault(mutant.name, mutant)
            file = folder / made.name
            file.write_bytes(mutant.data)
            yield mutant
            file.unlink()


def _passing(evaluator: CaseEvaluator, cases: Sequence[Case]) -> list[Case]:
    """Choose the cases that the op passes; none if one cannot run: hangs take time."""
    verdicts = []
    for case in cases:
        verdicts.append(evaluator.judge(case).result.verdict)
        if verdicts[-1] is Verdict.ERROR:
            return []
    return [c for c, verdict in zip(cases, verdicts, strict=True) if verdict is Verdict.PASSED]


def _try_one(
    evaluator: CaseEvaluator, mutant: PtxMutant, cases: Sequence[Case]
) -> Iterator[MutantResult]:
    for case in cases:
        killed = evaluator.judge(case).result.verdict in BAD
        yield MutantResult(mutant.name, case.seed, killed)
        if killed:
            return
