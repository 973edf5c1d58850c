"""Shrink a recorded failure by running the op on smaller cases; record the smallest case."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event
from typing import Any

from msgspec.structs import replace

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cases.candidates import Candidate, StopMinimising
from gpuemu_flow.cases.generated_values import case_fault
from gpuemu_flow.cases.minimize import Minimized, minimise, minimised_case
from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.cases.shrink_shapes import failing_position
from gpuemu_flow.client.calls import output_fields
from gpuemu_flow.fuzz.failures import (
    CODE,
    FailureLog,
    FailureSetting,
    fails_alike,
    find_failure,
    judge_in,
    recorded_reason,
    stored_inputs,
    subject_for,
    told_by_setting,
)
from gpuemu_flow.fuzz.subjects import open_ordered
from gpuemu_flow.judge.case_evaluator import SESSIONS_PER_EVALUATOR, CaseEvaluator, EvaluatedCase
from gpuemu_flow.judge.fuzz_results import Minimization
from gpuemu_flow.judge.judge_requests import GivenCase
from gpuemu_flow.judge.protocol import ReferenceFacts
from gpuemu_flow.judge.subject import Subject
from gpuemu_flow.model.errors import Problem, RunnerError
from gpuemu_flow.model.in_place import with_changed_inputs
from gpuemu_flow.model.types import Case, CheckResult, Failure, FailureKind, Verdict
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.store.failures import FailureRecord, FailureStore
from gpuemu_flow.workers.api import DEFAULT_OUTPUT, TIMEOUT
from gpuemu_flow.workers.arena import changed_inputs
from gpuemu_flow.workers.pool import Pool

RunOp = Callable[[dict[str, Any]], Any]

HANG_SECONDS = 2.0
"""Time limit, in seconds, of each smaller case while a hang is shrunk."""


def minimise_failure(
    workspace: Workspace,
    record: FailureRecord,
    *,
    strategy: str,
    budget: int,
    seconds: float = math.inf,
    cancel: Event | None = None,
    run_op: RunOp | None = None,
    pool: Pool | None = None,
) -> Minimization:
    """Shrink a recorded failure by running the op on smaller cases; verify and store the result.
    After `seconds`, counted from the first call, the search ends with the smallest case found.
    `run_op` is an op that only this process can run; it gets the inputs by name.
    Raises StoreError: ``failure-inputs-lost``. Raises RunnerError: ``not-minimizable``: an input
    could not be made, or the failure is a timeout and every smaller case ends in time. ``needs-
    missing``: a program used a file that a build rule makes, without waiting for the rule."""
    store = FailureStore(workspace.cache)
    workspace.cache.create()
    subject, schema = subject_for(workspace, record, given_op=run_op is not None)
    case = record.case
    inputs = stored_inputs(store, record)
    if case_fault(case) is not None:
        text = f"of failure {record.id} an input could not be made: there is nothing to shrink"
        raise RunnerError(Problem("not-minimizable", text, "fix the function first"))
    ask: dict[str, Any] = {
        "budget": budget,
        "schema": schema,
        "dims": dict(case.dims),
        "layouts": dict(record.layouts),
        "failing": _failing_position(schema, record),
        "strategy": strategy,
    }
    with nullcontext(pool) if pool else Pool(2 * SESSIONS_PER_EVALUATOR) as workers:
        shrinker = _Shrinker(workspace, workers, subject, record, cancel, seconds, run_op)
        found = shrinker.search(inputs, ask)
        if not found.reproduced:
            return Minimization(record, None, 0, found.calls, one_minimal=False)
        if not found.steps and record.minimized_from is not None:
            return Minimization(record, record, 0, found.calls, found.one_minimal)
        candidate = Candidate(found.inputs, found.layouts, found.dims)
        smallest = minimised_case(case, found)
        result = shrinker.judge_patiently(candidate)
        if not fails_alike(record, result):
            raise RunnerError(_only_slow(record, subject.op.timeout))
        told = shrinker.told_by_setting(candidate)
        if told:
            result = replace(result, notes=(told, *result.notes))
    new_id = FailureLog(workspace).add(
        record.op,
        smallest,
        result,
        source="minimize",
        subject=subject,
        inputs=found.inputs,
        minimized_from=record.id,
        more={} if run_op is None else {CODE: None},  # which is not known of either
    )
    return Minimization(
        store.get(record.id), store.get(new_id), found.steps, found.calls, found.one_minimal,
        found.log,
    )  # fmt: skip


def _only_slow(record: FailureRecord, timeout: float) -> Problem:
    return Problem(
        "not-minimizable",
        f"failure {record.id} is slow and does not hang: no smaller case was found that takes over "
        f"{timeout:g} s",
        "lower the op's `timeout`, and minimize again",
    )


def _failing_position(schema: OpSchema | None, record: FailureRecord) -> dict[str, int] | None:
    """Return the failing element's index along each dim by name; None if it is not known. Slices
    around this element are tried first."""
    first = next(iter(record.result.failures), None)
    if schema is None or first is None or first.index is None:
        return None
    return failing_position(schema, record.shapes, first.output, first.index)


class _Shrinker:
    """Tests whether smaller cases fail for the same reason as the original, in the same setting."""

    def __init__(
        self,
        workspace: Workspace,
        pool: Pool,
        subject: Subject,
        record: FailureRecord,
        cancel: Event | None,
        seconds: float,
        run_op: RunOp | None = None,
    ) -> None:
        self._workspace = workspace
        self._pool = pool
        self._seconds = seconds
        self._end = math.inf
        self._patient = self._subject = subject
        if record.kind == FailureKind.EXECUTION.value and TIMEOUT in recorded_reason(record):
            quick = replace(subject.op, timeout=min(subject.op.timeout, HANG_SECONDS))
            self._subject = replace(subject, op=quick)
        self._record = record
        self._cancel = cancel
        self._run_op = run_op
        self._case = record.case
        self._setting = FailureSetting.ALONE
        self._facts = ReferenceFacts()
        self._alone: CheckResult | None = None

    def search(self, inputs: Any, ask: dict[str, Any]) -> Minimized:
        """Return the smallest failing case. The settings of `FailureSetting` are tried in order,
        until the original fails in one. All smaller cases are judged in this setting. If the
        original fails in none, `Minimized.reproduced` is False."""
        for setting in FailureSetting:
            self._setting = setting
            with self._evaluator(self._subject) as evaluator:
                evaluator.explain = self._record.verdict != Verdict.FAILED.value
                found = minimise(inputs, still_fails=self._in_time(evaluator), **ask)
            if self._run_op is not None:
                break
            if found.reproduced:
                self._alone = self._judge_alone(
                    Candidate(found.inputs, found.layouts, found.dims), self._subject
                )
                if not fails_alike(self._record, self._alone):
                    # It came from the state of earlier candidates, so use a process for each.
                    self._alone = None
                    found = minimise(inputs, still_fails=self._in_time(None), **ask)
            if found.reproduced or time.monotonic() >= self._end:
                break
        return found

    @contextmanager
    def _evaluator(self, subject: Subject) -> Iterator[CaseEvaluator]:
        about = (self._workspace, self._pool, subject, self._cancel)
        with open_ordered(*about, facts=self._facts) as evaluator:
            yield evaluator
            self._facts = evaluator.facts

    def _judge(self, evaluator: CaseEvaluator, candidate: Candidate) -> EvaluatedCase:
        case = minimised_case(self._case, candidate)
        if self._run_op is not None:
            return self._judge_own(self._run_op, evaluator, case, candidate)
        return judge_in(self._setting, evaluator, case, candidate.laid_out(), self._record)

    def _judge_own(
        self, run_op: RunOp, evaluator: CaseEvaluator, case: Case, candidate: Candidate
    ) -> EvaluatedCase:
        """Judge what the user's op gives, as the daemon judges what a client submits."""
        before, given = candidate.laid_out(), candidate.laid_out()
        narrow = numpy_dtype("bfloat16")
        if case.dtype == "bfloat16":  # which clients have as float32
            given = {n: a.astype("float32") if a.dtype == narrow else a for n, a in given.items()}
        op = self._workspace.config.op(self._record.op)
        names = self._subject.reference.output_names
        try:
            returned = with_changed_inputs(run_op(dict(given)), given, names, op.in_place)
        except Exception as error:
            text = f"the op: {type(error).__name__}: {error}"
            failure = Failure(FailureKind.EXECUTION, text, why=type(error).__name__)
            return EvaluatedCase(case, CheckResult(Verdict.ERROR, (failure,)))
        fields = output_fields(returned)
        outputs = fields.get("outputs") or {(names or (DEFAULT_OUTPUT,))[0]: fields["output"]}
        if case.dtype == "bfloat16":
            given, outputs = (
                {n: a.astype(narrow) if a.dtype.kind == "f" else a for n, a in each.items()}
                for each in (given, outputs)
            )
        changed = [f for f in changed_inputs(before, given) if f.output not in op.mutates]
        (result,) = evaluator.judge_given([GivenCase(case, before, outputs, changed)])
        return EvaluatedCase(case, result)

    def _fails(self, evaluator: CaseEvaluator, candidate: Candidate) -> bool:
        return fails_alike(self._record, self._judge(evaluator, candidate).result)

    def _in_time(self, evaluator: CaseEvaluator | None) -> Callable[[Candidate], bool]:
        """Return a predicate that ends the search once its time is over. Each candidate runs in
        `evaluator` or, without one, in a process of its own."""

        def fails(candidate: Candidate) -> bool:
            if time.monotonic() >= self._end:
                raise StopMinimising
            found = self._fails(evaluator, candidate) if evaluator else self.fails_alone(candidate)
            # What is loaded for the first call does not count.
            self._end = min(self._end, time.monotonic() + self._seconds)
            return found

        return fails

    def judge_patiently(self, candidate: Candidate) -> CheckResult:
        """Evaluate what `search` found in a separate process, with the op's full time limit."""
        if self._alone is not None and self._subject is self._patient:
            return self._alone
        return self._judge_alone(candidate, self._patient)

    def _judge_alone(self, candidate: Candidate, subject: Subject) -> CheckResult:
        with self._evaluator(subject) as evaluator:
            return self._judge(evaluator, candidate).result

    def told_by_setting(self, candidate: Candidate) -> str:
        """Return a sentence on the circumstances in which the case fails. An example is that the
        case fails only after a call on other inputs. The sentence is empty if the case fails in a
        single call without such circumstances."""
        setting = self._setting

        def fails(other: FailureSetting) -> bool:
            self._setting = other
            return self.fails_alone(candidate)

        try:
            return told_by_setting(setting, fails)
        finally:
            self._setting = setting

    def fails_alone(self, candidate: Candidate) -> bool:
        """Tell whether the candidate fails in a process of its own."""
        return fails_alike(self._record, self._judge_alone(candidate, self._subject))


def minimise_own(
    folder: Path, failure: int | str, run_op: RunOp, *, strategy: str, budget: int
) -> Minimization:
    """Shrink a failure of an op of this process, in the workspace of a folder."""
    workspace = Workspace(folder)
    record = find_failure(workspace, str(failure))
    return minimise_failure(workspace, record, strategy=strategy, budget=budget, run_op=run_op)
