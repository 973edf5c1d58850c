"""Judge outputs computed in this process as ``run`` judges them, without a daemon."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.cases.generated_values import demand_made, is_made
from gpuemu_flow.cases.plan import op_samples
from gpuemu_flow.config.model import OpConfig
from gpuemu_flow.fuzz.failures import FailureLog
from gpuemu_flow.fuzz.wire_ops import PlannedCases, Query, Subjects, WireSubject
from gpuemu_flow.judge.case_evaluator import SESSIONS_PER_EVALUATOR, CaseEvaluator, open_evaluator
from gpuemu_flow.judge.generated import with_generated
from gpuemu_flow.judge.judge_requests import GivenCase
from gpuemu_flow.judge.subject import Subject
from gpuemu_flow.judge.verdicts import run_error_result
from gpuemu_flow.model.errors import FlowError
from gpuemu_flow.model.in_place import with_changed_inputs
from gpuemu_flow.model.types import BAD, Case, CheckResult, FailureKind, Json
from gpuemu_flow.store.failures import SUBMITTED
from gpuemu_flow.workers.api import DEFAULT_OUTPUT, Program, RunError
from gpuemu_flow.workers.arena import changed_inputs
from gpuemu_flow.workers.arguments import given_values
from gpuemu_flow.workers.diagnose import explain
from gpuemu_flow.workers.pool import Pool

Arrays = Mapping[str, NDArray[Any]]

WARM = 4
"""Maximum number of ops and dtypes whose programs are kept open."""


class OwnOutputs:
    """Makes cases of a workspace's ops, and judges outputs computed by the caller. Thread-safe.
    Raises FlowError: The configuration cannot be used."""

    def __init__(self, start: Path, environ: Mapping[str, str] = os.environ) -> None:
        self.workspace = Workspace(start, environ=environ)
        self._subjects = Subjects(self.workspace)
        self._planned = PlannedCases()
        self._samples: dict[tuple[str, str], list[Case]] = {}
        self._warm: OrderedDict[
            object, tuple[AbstractContextManager[CaseEvaluator], CaseEvaluator]
        ] = OrderedDict()
        self._pool: Pool | None = None
        self._lock = threading.RLock()

    def op(self, name: str) -> OpConfig:
        return self._subjects.op(name)

    def case(self, op: str, index: int, **wanted: Any) -> Case:
        """Return one case of an op; see `PlannedCases.case`. Raises GenerateError: The user's
        function that makes the values of an input failed."""
        case = self._planned.case(self.op(op), index, **wanted)
        if is_made(case):
            return case
        with self._lock:
            subject = self._subject(op, case.dtype, None)
            (made,) = with_generated(self._open_pool(), subject.generators, [case])
        return demand_made(made)

    def check(
        self,
        op: str,
        case: Case,
        outputs: Arrays,
        *,
        inputs: Arrays | None = None,
        tolerance: tuple[float, float] | None = None,
    ) -> CheckResult:
        """Judge outputs that the caller computed for a case. Raises RunnerError:
        ``needs-missing``."""
        pristine = materialise(case)
        with self._lock:
            made = self._made(op, case.dtype, tolerance)
            name = output_names(made.subject)[0]
            named = {key or name: array for key, array in outputs.items()}
            evaluator = self._evaluator(made.subject, tolerance)
            found = changed_inputs(pristine, inputs or {})
            allowed = self.op(op).mutates
            changed = [failure for failure in found if failure.output not in allowed]
            (result,) = evaluator.judge_given([GivenCase(case, pristine, named, changed)])
            made.seen.refuse(evaluator.observed())
        return result

    def judge_error(self, op: str, case: Case, error: RunError) -> CheckResult:
        with self._lock:
            return self._evaluator(self._subject(op, case.dtype, None), None).judge_error(
                case, error
            )

    def raised(self, op: str, case: Case, error: BaseException) -> CheckResult:
        """Judge a case in which the op, or a test of the op, raised an exception. For an error of
        this package, the reference is not run, since the error says nothing about the op."""
        with self._lock:
            program = self._subject(op, case.dtype, None).op
        explained = explain(error, msgspec.structs.replace(program, path=""))
        if isinstance(error, FlowError):
            return run_error_result(FailureKind.EXECUTION, explained)
        return self.judge_error(op, case, explained)

    def given_values(self, op: str, dtype: str, inputs: Arrays) -> dict[str, Any]:
        """Return inputs as functions receive them: scalars as values, absent inputs as None."""
        with self._lock:
            return given_values(self._subject(op, dtype, None).reference, inputs)

    def output_names(self, op: str, dtype: str) -> tuple[str, ...]:
        with self._lock:
            return output_names(self._subject(op, dtype, None))

    def declared_outputs(self, op: str, dtype: str) -> tuple[str, ...]:
        with self._lock:
            return self._subject(op, dtype, None).reference.output_names

    def with_changed_inputs(self, op: str, dtype: str, returned: Any, inputs: Arrays | None) -> Any:
        """Return the op's return value together with the outputs that the op wrote into its
        inputs."""
        names, changed = self.output_names(op, dtype), self.op(op).in_place
        return with_changed_inputs(returned, inputs or {}, names, changed)

    def record(
        self,
        op: str,
        case: Case,
        result: CheckResult,
        *,
        source: str,
        tolerance: tuple[float, float] | None = None,
        more: Mapping[str, Json] | None = None,
    ) -> str:
        if result.verdict not in BAD:
            return ""
        with self._lock:
            self.workspace.cache.create()
            subject = self._subject(op, case.dtype, tolerance)
            programs = msgspec.structs.replace(
                subject,
                op=Program(
                    SUBMITTED, root=subject.op.root, input_names=subject.reference.input_names
                ),
            )
            log = FailureLog(self.workspace)
            return log.add(op, case, result, source=source, subject=programs, more=more)

    def _subject(self, name: str, dtype: str, tolerance: tuple[float, float] | None) -> Subject:
        return self._made(name, dtype, tolerance).subject

    def _made(self, name: str, dtype: str, tolerance: tuple[float, float] | None) -> WireSubject:
        samples = self._samples.get((name, dtype))
        if samples is None:
            op = self.op(name)
            samples = self._samples[name, dtype] = op_samples(
                op.schema,
                seed=self.workspace.config.validation.seed,
                dtype=dtype,
                strategies=op.strategies,
                layouts=op.layouts,
            )
        made = self._subjects.make(Query(name, dtype, {}, tolerance), samples[0])
        return msgspec.structs.replace(
            made, subject=msgspec.structs.replace(made.subject, samples=samples)
        )

    def _evaluator(self, subject: Subject, tolerance: object) -> CaseEvaluator:
        """Return the evaluator for a subject, whose programs keep running between cases. Only the
        `WARM` most recently used evaluators are kept; an older one is closed."""
        key = subject.name, subject.dtype, tolerance, repr(subject.reference), repr(subject.compare)
        if key in self._warm:
            self._warm.move_to_end(key)
            return self._warm[key][1]
        pool = self._open_pool()
        while len(self._warm) >= WARM:
            _, (oldest, _) = self._warm.popitem(last=False)
            oldest.__exit__(None, None, None)
        manager = open_evaluator(pool, subject)
        self._warm[key] = manager, manager.__enter__()
        return self._warm[key][1]

    def _open_pool(self) -> Pool:
        if self._pool is None:
            self.workspace.cache.create()
            self._pool = Pool(WARM * SESSIONS_PER_EVALUATOR)
        return self._pool

    def close(self) -> None:
        with self._lock:
            while self._warm:
                _, (manager, _) = self._warm.popitem()
                manager.__exit__(None, None, None)
            if self._pool is not None:
                self._pool.close()
                self._pool = None
            self.workspace.cache.close()


def output_names(subject: Subject) -> tuple[str, ...]:
    return subject.reference.output_names or (DEFAULT_OUTPUT,)
