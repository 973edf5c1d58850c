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
from gpuemu_flow.runners.api import Checks, Outcome, Program
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.runners.session import ProgramSession
from gpuemu_flow.tasks.judge import Judge
from gpuemu_flow.tasks.run_reference import WIDE, expected_dtypes
from gpuemu_flow.tasks.verdicts import run_error_result, with_violations
from gpuemu_flow.types import DTYPES, Case, CheckResult, FailureKind, Json

Arrays = Mapping[str, NDArray[Any]]
PLAIN = Checks(inputs_unchanged=False)
SESSIONS_PER_TRIAL = 4  # op, reference, and for tolerances the reference again and its shadow


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
        # Apart from `_reference`, whose memory holds the expected outputs while they are judged.
        self._evaluators: dict[bool, ProgramSession] = {}
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
        # Guards and decoys need the op's own process to make the inputs: the buffers are its own.
        given = case if checks.decoy or checks.guards else inputs
        return self._try(case, inputs, given, checks)

    def judge_arrays(self, case: Case, inputs: Arrays, checks: Checks = PLAIN) -> Trial:
        """Judge given inputs; `case` says which dtype, seed and strategy they stand for."""
        return self._try(case, inputs, inputs, checks)

    def _try(self, case: Case, inputs: Arrays, given: Case | Arrays, checks: Checks) -> Trial:
        """Run both programs beside each other, then judge."""
        self._reference.begin(inputs, **self._asked)
        self._op.begin(given, checks=checks, index=case.index, seed=case.seed)
        actual, outcome = self._op.finish()
        expected, reference = self._finish_reference(inputs)
        if reference.error is not None:
            result = run_error_result(FailureKind.REFERENCE, reference.error)
        elif outcome.error is not None:
            result = run_error_result(FailureKind.EXECUTION, outcome.error)
        else:
            result = self._checker(reference).check(case, actual, expected, inputs)
            result = with_violations(result, outcome.violations)
        return Trial(
            case, result, inputs, actual, expected, outcome.duration_s, reference.duration_s
        )

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
        return self._checker(outcome).check(case, actual, expected, inputs)

    @property
    def _asked(self) -> dict[str, Any]:
        """How the reference is called: in float64 where it can, converted in its own process."""
        if not self._widens:
            return {"checks": PLAIN}
        return {"checks": PLAIN, "input_dtype": WIDE, "dtype": self.subject.dtype}

    def _finish_reference(self, inputs: Arrays) -> tuple[Arrays, Outcome]:
        outputs, outcome = self._reference.finish()
        if outcome.ok or not self._widens:
            return outputs, outcome
        return self._reference.call(inputs, checks=PLAIN)

    def _expected(self, inputs: Arrays) -> tuple[Arrays, Outcome]:
        self._reference.begin(inputs, **self._asked)
        return self._finish_reference(inputs)

    def __call__(self, inputs: Arrays, *, shadow: bool = False) -> dict[str, NDArray[Any]]:
        """Evaluate the reference on given inputs, as the ``auto`` tolerance asks.

        Raises
        ------
        RunnerError
            ``reference-failed``.
        """
        outputs, outcome = self._evaluator(shadow=shadow).call(inputs, checks=PLAIN)
        if outcome.error is not None:
            raise RunnerError(Problem("reference-failed", outcome.error.message))
        return {name: array.copy() for name, array in outputs.items()}

    def _evaluator(self, *, shadow: bool) -> ProgramSession:
        if shadow not in self._evaluators:
            program = replace(self.subject.reference, shadow=shadow)
            self._evaluators[shadow] = self._session(program)
        return self._evaluators[shadow]

    def _checker(self, outcome: Outcome) -> Judge:
        if self._judge is None:
            allowed: dict[str, list[str]] = {}
            if self._widens:
                smallest = min(self.subject.samples, key=lambda case: case.numel)
                _, probe = self._evaluator(shadow=False).call(materialise(smallest), checks=PLAIN)
                allowed = expected_dtypes(probe, [outcome], self.subject.dtype)
            self._judge = Judge(self.subject.compare, allowed, self.subject.samples, self)
        return self._judge


@contextmanager
def open_trials(pool: Pool, subject: Subject, cancel: Event | None = None) -> Iterator[Trials]:
    """Warm sessions for one subject; closed on leaving."""
    with ExitStack() as stack:
        yield Trials(pool, subject, stack, cancel)
