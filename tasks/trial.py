"""One op and its reference, kept warm, judging case after case: nothing is stored on the way.

``run`` works in stages, so that each can be cached. Fuzzing, reproducing, minimising and the
daemon judge one case at a time and want it fast: inputs are made once and handed to both programs
through shared memory, outputs come back the same way. The verdict is `judge`'s, as in ``run``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

from numpy.typing import NDArray

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.errors import Problem, RunnerError
from gpuemu_flow.numerics.dtypes import dtype_name, to_float64
from gpuemu_flow.runners.api import Checks, Outcome, Program
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.runners.session import ProgramSession
from gpuemu_flow.tasks.judge import Judge
from gpuemu_flow.tasks.run_reference import WIDE, expected_dtypes
from gpuemu_flow.tasks.verdicts import run_error_result, with_violations
from gpuemu_flow.types import DTYPES, Case, CheckResult, FailureKind, Json

Arrays = Mapping[str, NDArray[Any]]
PLAIN = Checks(inputs_unchanged=False)
SESSIONS_PER_TRIAL = 3  # op, reference, and the reference's shadow


@dataclass(frozen=True)
class Trial:
    """What came of one case.

    Attributes
    ----------
    case : Case
    result : CheckResult
    inputs : mapping of str to ndarray
        As they were given to the op, in their layouts.
    actual, expected : mapping of str to ndarray
        Views that are valid until the next trial; empty where a program gave no outputs.
    op_s, reference_s : float
        Seconds of the programs' own calls.
    """

    case: Case
    result: CheckResult
    inputs: Arrays
    actual: Arrays = field(default_factory=dict)
    expected: Arrays = field(default_factory=dict)
    op_s: float = 0.0
    reference_s: float = 0.0


@dataclass(frozen=True)
class Prepared:
    """A case with its expected outputs and the judge of its op.

    Attributes
    ----------
    case : Case
    inputs, expected : mapping of str to ndarray
    judge : Judge
    """

    case: Case
    inputs: Arrays
    expected: Arrays
    judge: Judge

    @property
    def dtypes(self) -> dict[str, str]:
        """The likeliest dtype of each output."""
        allowed = self.judge.allowed_dtypes(self.expected)
        return {name: names[0] for name, names in allowed.items()}

    def check(self, actual: Arrays) -> CheckResult:
        """The verdict on outputs."""
        return self.judge.check(self.case, actual, self.expected, self.inputs)


@dataclass(frozen=True)
class Subject:
    """An op to be tried: its programs and how outputs are judged.

    Attributes
    ----------
    name, dtype : str
    op, reference : Program
    compare : mapping
        The op's ``compare`` slice of the configuration.
    reference_dtype : str or None
        The dtype that the reference is asked for; None means float64 where it can.
    samples : sequence of Case
        The op's first cases; see `Judge`.
    """

    name: str
    dtype: str
    op: Program
    reference: Program
    compare: Mapping[str, Json]
    samples: Sequence[Case]
    reference_dtype: str | None = None


class Trials:
    """Judges cases of one subject with warm programs. Not thread-safe; use `open_trials`."""

    def __init__(
        self, pool: Pool, subject: Subject, stack: ExitStack, cancel: Event | None
    ) -> None:
        self.subject = subject
        self._pool = pool
        self._stack = stack
        self._cancel = cancel
        self._reference = self._session(subject.reference)
        self._opened_op: ProgramSession | None = None
        self._shadow: ProgramSession | None = None
        self._judge: Judge | None = None
        kind = DTYPES[subject.dtype].kind
        asked = subject.reference_dtype in (None, WIDE)
        self._widens = kind == "float" and subject.dtype != WIDE and asked

    @property
    def has_source(self) -> bool:
        """Whether the reference has a float32 shadow."""
        reference = self.subject.reference
        return reference.kind != "command" and not reference.python

    @property
    def _op(self) -> ProgramSession:
        """The op's session; outputs that someone else computed are judged without one."""
        if self._opened_op is None:
            self._opened_op = self._session(self.subject.op)
        return self._opened_op

    def _session(self, program: Program) -> ProgramSession:
        return self._stack.enter_context(self._pool.session(program, cancel=self._cancel))

    def judge(self, case: Case, checks: Checks = PLAIN) -> Trial:
        """Make a case's inputs, run both programs on them, and judge."""
        inputs = materialise(case)
        if checks.decoy or checks.guards:
            # These need the op's own process to make the inputs: the buffers are its own.
            actual, outcome = self._op.call(case, checks=checks)
        else:
            actual, outcome = self._op.call(inputs, checks=checks, index=case.index, seed=case.seed)
        return self._judged(case, inputs, actual, outcome)

    def judge_arrays(self, case: Case, inputs: Arrays, checks: Checks = PLAIN) -> Trial:
        """Judge given inputs; `case` says which dtype, seed and strategy they stand for."""
        actual, outcome = self._op.call(inputs, checks=checks, index=case.index, seed=case.seed)
        return self._judged(case, inputs, actual, outcome)

    def prepare(self, case: Case) -> Prepared:
        """A case's inputs and what the reference makes of them, to judge outputs that were not run.

        Raises
        ------
        RunnerError
            ``reference-failed``.
        """
        return self.prepare_arrays(case, materialise(case))

    def prepare_arrays(self, case: Case, inputs: Arrays) -> Prepared:
        """`prepare` for given inputs."""
        outputs, outcome = self._expected(inputs)
        if outcome.error is not None:
            raise RunnerError(Problem("reference-failed", outcome.error.message))
        expected = {name: array.copy() for name, array in outputs.items()}
        return Prepared(case, inputs, expected, self._checker(outcome))

    def judge_outputs(self, case: Case, inputs: Arrays, actual: Arrays) -> CheckResult:
        """Judge outputs that someone else computed."""
        expected, outcome = self._expected(inputs)
        if outcome.error is not None:
            return run_error_result(FailureKind.REFERENCE, outcome.error)
        kept = {name: array.copy() for name, array in expected.items()}
        return self._checker(outcome).check(case, actual, kept, inputs)

    def _judged(self, case: Case, inputs: Arrays, actual: Arrays, outcome: Outcome) -> Trial:
        expected, reference = self._expected(inputs)
        if not reference.ok and reference.error is not None:
            result = run_error_result(FailureKind.REFERENCE, reference.error)
        elif not outcome.ok and outcome.error is not None:
            result = run_error_result(FailureKind.EXECUTION, outcome.error)
        else:
            # Judging may call the reference again, in the memory where `expected` lies.
            expected = {name: array.copy() for name, array in expected.items()}
            result = self._checker(reference).check(case, actual, expected, inputs)
            result = with_violations(result, outcome.violations)
        return Trial(
            case, result, inputs, actual, expected, outcome.duration_s, reference.duration_s
        )

    def _expected(self, inputs: Arrays) -> tuple[Arrays, Outcome]:
        if self._widens:
            outputs, outcome = self._reference.call(self._wide(inputs), checks=PLAIN)
            if outcome.ok:
                return outputs, outcome
        return self._reference.call(inputs, checks=PLAIN)

    def _wide(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        own = self.subject.dtype
        return {
            name: to_float64(array) if dtype_name(array.dtype) == own else array
            for name, array in inputs.items()
        }

    def __call__(self, inputs: Arrays, *, shadow: bool = False) -> dict[str, NDArray[Any]]:
        """Evaluate the reference on given inputs, as the ``auto`` tolerance asks.

        Raises
        ------
        RunnerError
            ``reference-failed``.
        """
        session = self._reference
        if shadow:
            if self._shadow is None:
                self._shadow = self._session(replace(self.subject.reference, shadow=True))
            session = self._shadow
        outputs, outcome = session.call(inputs, checks=PLAIN)
        if outcome.error is not None:
            raise RunnerError(Problem("reference-failed", outcome.error.message))
        return {name: array.copy() for name, array in outputs.items()}

    def _checker(self, outcome: Outcome) -> Judge:
        if self._judge is None:
            allowed: dict[str, list[str]] = {}
            if self._widens:
                smallest = min(self.subject.samples, key=lambda case: case.numel)
                _, probe = self._reference.call(materialise(smallest), checks=PLAIN)
                allowed = expected_dtypes(probe, [outcome], self.subject.dtype)
            self._judge = Judge(self.subject.compare, allowed, self.subject.samples, self)
        return self._judge


@contextmanager
def open_trials(pool: Pool, subject: Subject, cancel: Event | None = None) -> Iterator[Trials]:
    """Warm sessions for one subject; closed on leaving."""
    with ExitStack() as stack:
        yield Trials(pool, subject, stack, cancel)
