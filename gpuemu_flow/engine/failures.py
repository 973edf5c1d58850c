"""Failing cases after the run: recorded with their inputs, run again, made smaller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from numpy.typing import NDArray

from gpuemu_flow.cases.generate import input_values, materialise
from gpuemu_flow.cases.minimize import (
    Candidate,
    Minimized,
    failing_position,
    minimise,
    minimised_case,
)
from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.engine.subjects import dtypes_of, op_names, op_subject, select_ops
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import Problem, StoreError, UsageError
from gpuemu_flow.numerics.layouts import lay_out
from gpuemu_flow.reports.export_outputs import Expectation
from gpuemu_flow.reports.model import RunReport
from gpuemu_flow.reports.pytest_export import render
from gpuemu_flow.runners import blobs
from gpuemu_flow.runners.api import Checks, Program
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.store.failures import FailureRecord, FailureStore
from gpuemu_flow.tasks.trial import SESSIONS_PER_TRIAL, Subject, Trial, Trials, open_trials
from gpuemu_flow.types import Case, CheckResult, Json, Verdict

Arrays = Mapping[str, NDArray[Any]]
BAD = (Verdict.FAILED, Verdict.ERROR)


@dataclass(frozen=True)
class Reproduction:
    """A recorded failure, run again.

    Attributes
    ----------
    record : FailureRecord
    result : CheckResult
        Of the op as it is now.
    inputs, actual, expected : mapping of str to ndarray
    """

    record: FailureRecord
    result: CheckResult
    inputs: Arrays
    actual: Arrays
    expected: Arrays

    @property
    def still_fails(self) -> bool:
        """Whether it fails as before, or in another way."""
        return self.result.verdict in BAD


class FailureLog:
    """Writes failing cases of one workspace into its failure store."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.store = FailureStore(workspace.cache)

    def add(
        self,
        op: str,
        case: Case,
        result: CheckResult,
        *,
        source: str,
        subject: Subject | None = None,
        inputs: Arrays | None = None,
        cause: str = "",
        minimized_from: str | None = None,
    ) -> str:
        """Record one failing case; its id.

        Parameters
        ----------
        inputs : mapping of str to ndarray, optional
            Values in any layout; without them they are made from the case.
        """
        values = inputs
        if values is None:
            values = {spec.name: input_values(case, spec) for spec in case.inputs}
        subject = subject or op_subject(self._workspace, op, case.dtype).subject
        record = FailureRecord.of(
            op,
            case,
            result,
            source=source,
            maker={
                "op": subject.op.to_json(),
                "reference": subject.reference.to_json(),
                "reference_dtype": subject.reference_dtype,
                "compare": dict(subject.compare),
            },
            environment=self._workspace.environment,
            cause=cause,
            minimized_from=minimized_from,
        )
        return self.store.add(record, blobs.encode(values))


def record_run(workspace: Workspace, report: RunReport) -> int:
    """Record the failing cases that a run judged (not those that it found judged); how many."""
    fresh = [r for r in report.results if r.failures and not r.cached]
    if not fresh:
        return 0
    log = FailureLog(workspace)
    count = 0
    for result in fresh:
        subject = op_subject(workspace, result.op, result.dtype).subject
        for failure in result.failures:
            if failure.result.verdict in BAD:
                log.add(result.op, failure.case, failure.result, source="run", subject=subject)
                count += 1
    workspace.cache.close()
    return count


def list_failures(
    workspace: Workspace, op: str | None = None, limit: int | None = None
) -> list[dict[str, Json]]:
    """Recorded failures as commands print them, newest first."""
    if op is not None and op not in op_names(workspace):
        known = {record.op for record in FailureStore(workspace.cache)}
        if op not in known:
            select_ops(workspace, [op])
    records = FailureStore(workspace.cache).list(op, limit)
    return [record.to_public_json() for record in records]


def find_failures(workspace: Workspace, word: str, op: str | None = None) -> list[FailureRecord]:
    """Failures that a seed or an id names, newest first.

    Raises
    ------
    UsageError
        ``unknown-failure`` when none is.
    """
    store = FailureStore(workspace.cache)
    found = list(store.find(int(word), op)) if word.isdecimal() else []
    if not found:
        if word.isdecimal():
            hint = "`gpuemu-flow failures` lists those that are kept"
            where = f" of op {op!r}" if op else ""
            try:
                return [store.get(word)]
            except UsageError:
                message = f"no failure{where} has the seed {word}"
                raise UsageError(Problem("unknown-failure", message, hint)) from None
        return [store.get(word)]
    return found


def stored_inputs(store: FailureStore, record: FailureRecord) -> dict[str, NDArray[Any]]:
    """The exact inputs of a failure, in the layouts that they had.

    Raises
    ------
    StoreError
        ``failure-inputs-lost`` when the blob is gone or damaged and the case cannot be made again.
    """
    data = store.input_tensors(record)
    if data is not None:
        values = blobs.decode(data)
        return {name: lay_out(values[name], layout) for name, layout in record.layouts.items()}
    if record.source in ("run", "fuzz"):
        return dict(materialise(Case.from_json(record.case)))
    raise StoreError(
        Problem("failure-inputs-lost", f"the inputs of failure {record.id} are lost or damaged")
    )


def subject_for(workspace: Workspace, record: FailureRecord) -> tuple[Subject, OpSchema | None]:
    """The op as it is configured now, or as it was when the failure was recorded."""
    if record.op in op_names(workspace) and record.dtype in dtypes_of(workspace, record.op):
        found = op_subject(workspace, record.op, record.dtype)
        return found.subject, found.schema
    maker = record.maker
    case = Case.from_json(record.case)
    return (
        Subject(
            record.op,
            record.dtype,
            Program.from_json(maker["op"]),
            Program.from_json(maker["reference"]),
            maker["compare"],
            [case],
            maker["reference_dtype"],
        ),
        None,
    )


def reproduce(
    workspace: Workspace, records: Sequence[FailureRecord], *, cancel: Event | None = None
) -> list[Reproduction]:
    """Run recorded failures again, on their exact inputs."""
    store = FailureStore(workspace.cache)
    workspace.cache.create()
    found = []
    with Pool(SESSIONS_PER_TRIAL, staging=workspace.cache.staging) as pool:
        for record in records:
            subject, _ = subject_for(workspace, record)
            inputs = stored_inputs(store, record)
            with open_trials(pool, subject, cancel) as trials:
                trial = trials.judge_arrays(Case.from_json(record.case), inputs, _checks(record))
                found.append(
                    Reproduction(
                        record,
                        trial.result,
                        inputs,
                        {name: array.copy() for name, array in trial.actual.items()},
                        trial.expected,
                    )
                )
    return found


def _checks(record: FailureRecord) -> Checks:
    """Watch what the record's failure needs to show again."""
    return Checks(inputs_unchanged=True, repeat=True) if record.kind in _WATCHED else Checks()


_WATCHED = ("InputModified", "NonDeterministic", "OutputNotWritten", "OutOfBoundsWrite")


@dataclass(frozen=True)
class Minimization:
    """A failure and the smallest case found that fails as it does.

    Attributes
    ----------
    original : FailureRecord
    minimized : FailureRecord or None
        None when the failure no longer shows.
    steps, calls : int
        Smaller failing cases found, and runs of the op.
    one_minimal : bool
        No single dim can be smaller and no element zero without the failure vanishing.
    log : tuple of str
    """

    original: FailureRecord
    minimized: FailureRecord | None
    steps: int
    calls: int
    one_minimal: bool
    log: tuple[str, ...] = ()


def minimise_failure(
    workspace: Workspace,
    record: FailureRecord,
    *,
    strategy: str,
    budget: int,
    cancel: Event | None = None,
) -> Minimization:
    """Shrink a recorded failure by running the op again and again; store and verify the result."""
    store = FailureStore(workspace.cache)
    workspace.cache.create()
    subject, schema = subject_for(workspace, record)
    case = Case.from_json(record.case)
    inputs = stored_inputs(store, record)
    ask: dict[str, Any] = {
        "budget": budget,
        "schema": schema,
        "dims": dict(case.dims),
        "layouts": dict(record.layouts),
        "failing": _failing_position(schema, record),
        "strategy": strategy,
    }
    with Pool(2 * SESSIONS_PER_TRIAL, staging=workspace.cache.staging) as pool:
        with open_trials(pool, subject, cancel) as trials:
            found = minimise(inputs, still_fails=_Shrinker(trials, record).still_fails, **ask)
        if found.reproduced and not _fails_alone(pool, subject, record, found, cancel):
            # What failed was state that earlier candidates had left behind: one process for each.
            def still_fails(candidate: Candidate) -> bool:
                with open_trials(pool, subject, cancel) as fresh:
                    return _Shrinker(fresh, record).still_fails(candidate)

            found = minimise(inputs, still_fails=still_fails, **ask)
        if not found.reproduced:
            return Minimization(record, None, 0, found.calls, one_minimal=False)
        smallest = minimised_case(case, found)
        laid_out = {n: lay_out(array, found.layouts[n]) for n, array in found.inputs.items()}
        with open_trials(pool, subject, cancel) as trials:
            result = _Shrinker(trials, record).judge(smallest, laid_out).result
    new_id = FailureLog(workspace).add(
        record.op,
        smallest,
        result,
        source="minimize",
        subject=subject,
        inputs=found.inputs,
        cause=record.cause,
        minimized_from=record.id,
    )
    return Minimization(
        store.get(record.id), store.get(new_id), found.steps, found.calls, found.one_minimal,
        found.log,
    )  # fmt: skip


def _failing_position(schema: OpSchema | None, record: FailureRecord) -> dict[str, int] | None:
    """Where the failing element lies along each dim: slices about it are tried first."""
    first = next(iter(CheckResult.from_json(record.result).failures), None)
    if schema is None or first is None or first.index is None:
        return None
    return failing_position(schema, record.shapes, first.output, first.index)


def _fails_alone(
    pool: Pool,
    subject: Subject,
    record: FailureRecord,
    found: Minimized,
    cancel: Event | None,
) -> bool:
    """Whether the smallest case fails in a process of its own too."""
    candidate = Candidate(found.inputs, found.layouts, found.dims)
    with open_trials(pool, subject, cancel) as trials:
        return _Shrinker(trials, record).still_fails(candidate)


class _Shrinker:
    """The predicate of a minimisation: does a candidate fail for the original's reason?"""

    def __init__(self, trials: Trials, record: FailureRecord) -> None:
        self._trials = trials
        self._record = record
        self._case = Case.from_json(record.case)
        self._checks = _checks(record)

    def judge(self, case: Case, inputs: Arrays) -> Trial:
        """One trial of given inputs."""
        return self._trials.judge_arrays(case, inputs, self._checks)

    def still_fails(self, candidate: Candidate) -> bool:
        """Whether the op fails on it, with the same kind of failure."""
        trial = self.judge(self._case, candidate.laid_out())
        kinds = {failure.kind.value for failure in trial.result.failures}
        return trial.result.verdict.value == self._record.verdict and self._record.kind in kinds


def export_pytest(workspace: Workspace, record: FailureRecord, output: Path | None) -> Path:
    """Write a failure as a pytest file that runs without this tool; its path.

    Raises
    ------
    StoreError
        ``failure-inputs-lost``.
    RunnerError
        ``reference-failed``.
    """
    folder, name = Path.cwd(), ""
    if output is not None:
        folder, name = (output, "") if output.is_dir() else (output.parent, output.name)
    store = FailureStore(workspace.cache)
    workspace.cache.create()
    subject, _ = subject_for(workspace, record)
    inputs = stored_inputs(store, record)
    case = Case.from_json(record.case)
    with (
        Pool(SESSIONS_PER_TRIAL, staging=workspace.cache.staging) as pool,
        open_trials(pool, subject) as trials,
    ):
        prepared = trials.prepare_arrays(case, inputs)
        terms = prepared.judge.terms(case, prepared.expected, inputs)
        expectation = Expectation(
            prepared.expected,
            terms.tolerance,
            terms.policy,
            prepared.judge.allowed_dtypes(prepared.expected),
        )
        # Rendering measures the envelope, for which the reference is still needed.
        export = render(
            record, subject.op, inputs, expectation, folder=folder.resolve(), file_name=name
        )
    return export.write(folder)
