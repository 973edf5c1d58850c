"""Measure an op's check: which bugs it misses, and which tolerances the op needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from threading import Event
from typing import Any

from msgspec.structs import replace

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.subjects import (
    OpSubject,
    dtypes_of,
    op_subject,
    open_ordered,
    select_ops,
)
from gpuemu_flow.judge.case_evaluator import SESSIONS_PER_EVALUATOR, CaseEvaluator, Prepared
from gpuemu_flow.judge.fuzz_results import Mutation
from gpuemu_flow.model.errors import Problem, RunnerError
from gpuemu_flow.model.types import BAD, Case, Verdict
from gpuemu_flow.model.verdicts import Tally
from gpuemu_flow.numerics.calibrate import (
    Calibration,
    MeasuredErrors,
    calibrate,
    observe,
)
from gpuemu_flow.numerics.output_mutants import (
    OUTPUT_MUTANTS,
    MutantResult,
    has_finite,
    plant,
)
from gpuemu_flow.numerics.output_mutants import score as mutation_score
from gpuemu_flow.numerics.trivial import (
    Arrays,
    TrivialResult,
    assess,
    trivial_candidates,
)
from gpuemu_flow.tasks.params import GenerateParams, params_of
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

    with Pool(SESSIONS_PER_EVALUATOR, staging=workspace.cache.staging) as pool:
        yield each()


def mutate(workspace: Workspace, op: str, *, cancel: Event | None = None) -> Mutation:
    """Plant known bugs in an op's outputs on default cases, and measure how many the check finds.
    Raises UsageError: ``unknown-op``. Raises RunnerError: ``needs-missing``."""
    select_ops(workspace, [op])
    results: list[MutantResult] = []
    trivial: list[TrivialResult] = []
    count = 0
    with _all_evaluators(workspace, op, cancel) as each:
        for subject, evaluator in each:
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
                results += _mutant_results(prepared, evaluator)
                trivial += _trivial_results(prepared, previous)
                previous = prepared.expected
    return Mutation(op, mutation_score(results), assess(trivial), count)


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
            # For these outputs, two tensors show no error; other outputs have a separate tolerance.
            elsewhere = {c.name for c in contracts if not c.plain or c.tolerance is not None}
            for case in _cases(workspace, subject, cases):
                if case.strategy in ("special", "extremes"):
                    continue  # no tolerance is meant to cover overflow
                evaluated = evaluator.judge(case)
                if evaluated.result.verdict is Verdict.ERROR:
                    message = evaluated.result.failures[0].message
                    raise RunnerError(Problem("calibration-failed", f"{op}: {message}"))
                verdicts.add(evaluated.result)
                given = {n: a for n, a in evaluated.actual.items() if n not in elsewhere}
                observations += observe(given, evaluated.expected)
            failed, tried = verdicts.counts.get(Verdict.FAILED, 0), verdicts.cases
            if tried and failed == tried:
                text = f"{op} is wrong in all {tried} cases of {subject.subject.dtype}"
                hint = f"make it right first: `gpuemu-flow run {op}`; a tolerance would hide it"
                raise RunnerError(Problem("calibration-failed", text, hint))
    return calibrate(observations)
