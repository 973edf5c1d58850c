"""Judge the cases of one op, in warm workers of op and reference.

The reference's worker makes the inputs in memory that it shares with the op's worker, and judges
the outputs there: those of the op, or those that were computed elsewhere. ``run`` works in stages,
so that each can be cached; fuzzing, reproducing, minimising and the daemon run both programs here.
All verdicts come from `judge.Judge`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from threading import Event
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.cases.generated_values import fit_together, is_made, unmade, usable
from gpuemu_flow.judge.judge_requests import (
    Evaluation,
    GivenCase,
    JudgeRequest,
    PreparedBatch,
    ThereRequest,
)
from gpuemu_flow.judge.protocol import Judged, ReferenceFacts, Setup
from gpuemu_flow.judge.subject import PLAIN, Subject, widens
from gpuemu_flow.judge.verdicts import (
    StoredCase,
    comparison_failed,
    input_error,
    run_error_result,
    with_printed,
    with_violations,
    without_outputs,
)
from gpuemu_flow.model.errors import Problem, RunnerError
from gpuemu_flow.model.types import Case, CheckResult, Failure, FailureKind, Observation
from gpuemu_flow.numerics.operand import Rounding
from gpuemu_flow.workers.api import Checks, OpError, Outcome, Program, RunError
from gpuemu_flow.workers.attempt import Attempt
from gpuemu_flow.workers.checked import CallMany, ProgramSession, SharedInputs, watches
from gpuemu_flow.workers.pool import Pool
from gpuemu_flow.workers.supervise import BatchSize
from gpuemu_flow.workers.tensors import as_plain_array, demand_bools

Arrays = Mapping[str, NDArray[Any]]


class EvaluatedCase(Struct, frozen=True, dict=True):
    """A judged case with its tensors."""

    case: Case
    result: CheckResult
    actual: Arrays = field(default_factory=dict)
    inputs: Arrays | None = None  # as the op got them; None if they are those of the case
    bring_expected: Callable[[], Arrays] = dict

    @cached_property
    def expected(self) -> Arrays:
        """Fetch the reference's outputs, which is possible only while `actual` is valid."""
        return self.bring_expected()


class Prepared(Struct, frozen=True):
    """A case with its expected outputs."""

    case: Case
    inputs: Arrays
    expected: Arrays
    allowed: Mapping[str, list[str]]
    check: Callable[[Arrays], CheckResult]

    @property
    def dtypes(self) -> dict[str, str]:
        """Return the likeliest dtype of each output."""
        return {name: names[0] for name, names in self.allowed.items()}


SESSIONS_PER_EVALUATOR = 3  # op and reference, and a function that returns inputs


class CaseEvaluator:
    """Judges cases of one subject with warm programs. Not thread-safe; use `open_evaluator`."""

    def __init__(
        self,
        pool: Pool,
        subject: Subject,
        stack: ExitStack,
        cancel: Event | None,
        *,
        facts: ReferenceFacts | None = None,
    ) -> None:
        """Start no worker yet; `facts` are those that are known."""
        self.subject = subject
        self._pool = pool
        self._stack = stack
        self._cancel = cancel
        self._reference = stack.enter_context(
            pool.session(subject.reference, cancel=cancel, trusted=True)
        )
        self._opened_op: ProgramSession | None = None
        self._generator_seen = Observation()
        self._setup = Setup(
            dtype=subject.dtype,
            widens=widens(subject.dtype, subject.reference_dtype),
            compare=subject.compare,
            samples=self._samples(),
            facts=facts or ReferenceFacts(),
        )
        self.batch_size = BatchSize()
        self.rounds = 0
        self.explain = True
        """Whether verdicts say what wrong elements have in common, which takes a while."""

    @property
    def _op(self) -> ProgramSession:
        """Return the op's session, opened on first use."""
        if self._opened_op is None:
            self._opened_op = self._session(self.subject.op)
        return self._opened_op

    def observed(self) -> dict[str, Observation]:
        """Return everything that ``op``, ``reference`` and ``generator`` have used so far."""
        found = {"reference": self._reference.observed()}
        if self._opened_op is not None:
            found["op"] = self._opened_op.observed()
        if self.subject.generators:
            found["generator"] = self._generator_seen
        return found

    @property
    def facts(self) -> ReferenceFacts:
        """Return what is known by now of the reference."""
        return self._setup.facts

    @property
    def has_source(self) -> bool:
        """Tell whether the reference has source from which a float32 shadow is made."""
        reference = self.subject.reference
        return reference.kind != "command" and not reference.python

    def _session(self, program: Program) -> ProgramSession:
        return self._stack.enter_context(self._pool.session(program, cancel=self._cancel))

    def _samples(self) -> Sequence[Case]:
        """Return the sample cases of the subject, with the inputs that the user's functions make.

        Cases for which one of these functions fails are left out, unless no case would remain.
        """
        if not self.subject.generators:
            return self.subject.samples
        return usable(self._made(self.subject.samples))

    def _made(self, cases: Sequence[Case]) -> list[Case]:
        def learn(seen: Observation) -> None:
            joined = self._generator_seen | seen
            if joined != self._generator_seen:
                self._generator_seen = joined

        # Few ops have such functions.
        from gpuemu_flow.judge.generated import with_generated  # noqa: PLC0415

        generators = self.subject.generators
        return with_generated(self._pool, generators, cases, cancel=self._cancel, on_observed=learn)

    def made(self, case: Case) -> Case:
        """Return a case, completed by the values that the user's functions return; see `generated`.

        A function that failed when the case was recorded is called again.
        """
        return case if is_made(case) else self._made([unmade(case)])[0]

    def prepare(self, case: Case, inputs: Arrays | None = None) -> Prepared:
        """Make a case's inputs and the reference's outputs, to judge outputs computed elsewhere.

        Raises RunnerError: ``reference-failed``.
        """
        if not is_made(case):
            case, inputs = self.made(case), None
            error = input_error(case)
            if error is not None:
                raise RunnerError(Problem("reference-failed", error.message, error.hint))
        if inputs is None:
            inputs = materialise(case)
        about = PreparedBatch([case], inputs)
        attempt, judge_request = ask_expected(self._reference, self._setup, about, bring=True)
        _demand(attempt)

        def check(actual: Arrays) -> CheckResult:
            try:
                one = _as_plain(GivenCase(case, {}, actual))
            except OpError as refused:
                return self._without_op(about, refused.error)
            return self._judged(about, one, explain=False)

        return Prepared(
            case,
            inputs,
            {name: array.copy() for name, array in judge_request.outputs.items()},
            judge_request.expected.dtypes,
            check,
        )

    def judge(self, case: Case, checks: Checks = PLAIN) -> EvaluatedCase:
        """Make a case's inputs, run both programs on them, and judge."""
        self.rounds += 1
        case = self.made(case)
        return _not_run(case) or self._try(case, None, checks)

    def judge_arrays(self, case: Case, inputs: Arrays, checks: Checks = PLAIN) -> EvaluatedCase:
        """Judge a case on the given inputs; `case` provides the dtype, seed and strategy.

        If the checks include `decoy` or `guards`, `case` also provides shapes and layouts. If an
        input could not be made when the case was recorded, all inputs are made now, and `inputs` is
        ignored.
        """
        if not is_made(case):
            return self.judge(case, checks)
        return self._try(case, inputs, checks)

    def judge_all(self, cases: Sequence[Case]) -> Iterator[EvaluatedCase]:
        """Judge one case after the other as `judge` does, with `PLAIN` checks and fewer messages.

        A case whose programs fail is judged again separately. `batch_size` tells how many cases
        callers should pass.
        """
        self.rounds += 1
        begin = time.perf_counter()
        if self.subject.generators:
            cases = self._made(cases)
        together = len(cases) > 1 and fit_together(cases)
        results = self._try_all(cases) if together else []
        if results:
            self.batch_size.took(len(results), time.perf_counter() - begin)
        for number, case in enumerate(cases):
            result = results[number] if number < len(results) else None
            if result is not None:
                yield EvaluatedCase(case, result)
                continue
            begin = time.perf_counter()
            evaluated = _not_run(case) or self._try(case, None, PLAIN)
            self.batch_size.took(1, time.perf_counter() - begin)
            yield evaluated

    def _try_all(self, cases: Sequence[Case]) -> list[CheckResult | None]:
        """Judge the cases of a batch up to the first failure of a program; return their verdicts.

        The verdict is None for a case that must be judged separately.
        """
        arena = self._op.arena()
        if arena is None:
            return []
        about = PreparedBatch(cases, None, arena, give=True)
        judge_request = JudgeRequest(self._setup, about)
        try:
            self._reference.begin_work(judge_request)
            judge_request.wait_prepared()
            if not about.slots:
                self._reference.abandon()
                return []
            about.give = False
            work = CallMany(arena, cases, about.slots, PLAIN)
            self._op.ask(work)
            judge_request.places = [dict(called.slots) for called in work.done]
            judge_request.watch = True
            attempt = self._reference.finish_work(judge_request)
        except BaseException:
            self._reference.abandon()
            raise
        if not attempt.outcome.ok:
            return []
        self._setup.facts = judge_request.judged.facts
        return [
            None
            if result is None
            else with_printed(
                with_violations(result, (*self._modified(changed), *called.violations)),
                called.printed,
            )
            for result, changed, called in zip(
                judge_request.judged.results, judge_request.judged.changed, work.done, strict=False
            )
        ]

    def _try(self, case: Case, inputs: Arrays | None, checks: Checks) -> EvaluatedCase:
        """Run both programs in parallel, then judge in the reference's worker."""
        self.rounds += 1
        arena = self._op.arena()
        # With more checks, this process makes the op's inputs, between guard zones.
        give = inputs is None and not watches(checks)
        about = PreparedBatch([case], inputs, arena, give=give)
        judge_request = JudgeRequest(self._setup, about)
        judge_request.watch, judge_request.explain = give, self.explain
        try:
            self._reference.begin_work(judge_request)
            if inputs is None:
                judge_request.wait_prepared()
                about.give = False
            given = self._given_by(about) if inputs is None else inputs
            # With guards or decoys, the inputs have to be made for the op's process.
            stands_for = case if checks.decoy or checks.guards else None
            self._op.begin(
                given,
                checks=checks,
                index=case.index,
                seed=case.seed,
                case=stands_for,
            )
            actual, outcome = self._op.finish()
            result = self._settle(judge_request, actual, outcome)
        except BaseException:
            self._reference.abandon()
            raise
        return EvaluatedCase(case, result, actual, inputs, lambda: self._expected(about))

    def _modified(self, changed: Iterable[Failure]) -> list[Failure]:
        """Return the changes to inputs, without those to inputs that the op may change."""
        mutates = self.subject.op.mutates
        return [failure for failure in changed if failure.output not in mutates]

    def _expected(self, about: PreparedBatch) -> Arrays:
        judge_request = JudgeRequest(self._setup, about, method="expected")
        return judge_request.outputs if self._reference.ask(judge_request).outcome.ok else {}

    @staticmethod
    def _given_by(about: PreparedBatch) -> Arrays | SharedInputs:
        (case,) = about.cases
        if about.peer is None or not about.slots:
            return materialise(case)
        return SharedInputs(about.peer, about.slots[0], lambda: materialise(case))

    def _settle(self, judge_request: JudgeRequest, actual: Arrays, outcome: Outcome) -> CheckResult:
        """Return the verdict on a case once the op has finished."""
        call = self._op.done
        if outcome.error is not None:
            judge_request.method, judge_request.bring = "expected", False
        elif call is not None and call.arena is not None and call.arena is judge_request.about.peer:
            judge_request.places = [call.slots]
        judge_request.actual = actual
        attempt = self._reference.finish_work(judge_request)
        early = self._without_comparison(attempt, judge_request, outcome.error)
        if early is not None:
            return early
        self._setup.facts = judge_request.judged.facts
        changed = [each for found in judge_request.judged.changed for each in found]
        violations = (*self._modified(changed), *outcome.violations)
        result = with_violations(_only(judge_request), violations)
        return with_printed(result, outcome.printed)

    def judge_given(self, given: Sequence[GivenCase]) -> list[CheckResult]:
        """Judge outputs that were computed elsewhere, with one message for most of the cases.

        If an output has a dtype that no op can have, the verdict is ``error``.
        """
        plain = {n: one for n, one in enumerate(given) if input_error(one.case) is None}
        refused: dict[int, RunError] = {}
        for number, one in list(plain.items()):
            try:
                plain[number] = _as_plain(one)
            except OpError as error:
                refused[number] = error.error
                del plain[number]
        judged: dict[int, CheckResult | None] = {}
        if len(plain) > 1:
            request = ThereRequest(self._setup, list(plain.values()))
            if self._reference.ask(request).outcome.ok:
                self._setup.facts = request.judged.facts
                judged = dict(zip(plain, request.judged.results, strict=True))
        return [
            self._of_given(one, plain.get(n), judged.get(n), refused.get(n))
            for n, one in enumerate(given)
        ]

    def _of_given(
        self,
        one: GivenCase,
        plain: GivenCase | None,
        judged: CheckResult | None,
        refused: RunError | None,
    ) -> CheckResult:
        """Return the verdict on a given case; judge it alone if it was not judged with others."""
        about = PreparedBatch([one.case], one.inputs)
        if refused is not None:
            return self._without_op(about, refused)
        if plain is None:
            not_run = _not_run(one.case)
            assert not_run is not None  # noqa: S101 - its inputs could not be made
            return not_run.result
        if judged is None:
            return self._judged(about, plain, submitted=True)
        return with_violations(judged, one.violations)

    def judge_stored(self, stored: Sequence[tuple[StoredCase, GivenCase]]) -> list[CheckResult]:
        """Judge cases with the stored outputs of both programs.

        If the worker fails on a batch, each of its cases is judged separately.
        """
        request = ThereRequest(self._setup, [given for _, given in stored])
        error = self._reference.ask(request).outcome.error
        if error is None:
            self._setup.facts = request.judged.facts
            return [
                one.verdict(_certain(result))
                for (one, _), result in zip(stored, request.judged.results, strict=True)
            ]
        if len(stored) > 1:
            return [result for one in stored for result in self.judge_stored([one])]
        return [stored[0][0].verdict(comparison_failed(error))]

    def judge_error(self, case: Case, error: RunError) -> CheckResult:
        """Judge a case for which the op, run elsewhere, gave no outputs."""
        return self._without_op(PreparedBatch([case]), error)

    def _without_op(self, about: PreparedBatch, error: RunError) -> CheckResult:
        attempt, _ = ask_expected(self._reference, self._setup, about, bring=False)
        result = without_outputs(about.cases[0], attempt.outcome.error, error)
        assert result is not None  # noqa: S101 - there is an error
        return result

    def _judged(
        self, about: PreparedBatch, one: GivenCase, *, explain: bool = True, submitted: bool = False
    ) -> CheckResult:
        request = JudgeRequest(self._setup, about)
        request.explain, request.submitted = explain, submitted
        request.actual = one.outputs
        attempt = self._reference.ask(request)
        early = self._without_comparison(attempt, request, None)
        if early is not None:
            return early
        self._setup.facts = request.judged.facts
        return with_violations(_only(request), one.violations)

    def __call__(
        self, inputs: Arrays, *, shadow: bool = False, rounding: Rounding | None = None
    ) -> dict[str, NDArray[Any]]:
        """Evaluate the reference on given inputs, as the ``auto`` tolerance does.

        Raises RunnerError: ``reference-failed``.
        """
        evaluation = Evaluation(self._setup, inputs, shadow=shadow, rounding=rounding)
        _demand(self._reference.ask(evaluation))
        return {name: array.copy() for name, array in evaluation.outputs.items()}

    def _without_comparison(
        self, attempt: Attempt, judge_request: JudgeRequest, op: RunError | None
    ) -> CheckResult | None:
        """Return the verdict on a case if the op or the reference has no outputs.

        If the reference's process ended during the request, the case is judged again, with a
        separate request for each step.
        """
        if attempt.ended:
            judge_request.method = "judge"
            return judge_in_steps(self._reference, self._setup, judge_request, op)
        return without_outputs(judge_request.about.cases[0], attempt.outcome.error, op)


def _as_plain(one: GivenCase) -> GivenCase:
    """Return a case with its outputs as plain arrays in C order; raise OpError if impossible."""
    outputs = {
        name: np.asarray(as_plain_array(array, name), order="C")
        for name, array in one.outputs.items()
    }
    demand_bools(outputs)
    return replace(one, outputs=outputs)


def _only(request: JudgeRequest) -> CheckResult:
    """Return the only verdict of a request about one case."""
    (result,) = request.judged.results
    return _certain(result)


def _certain(result: CheckResult | None) -> CheckResult:
    if result is None:
        raise RuntimeError("the judge has to have a verdict on such a case")
    return result


def _not_run(case: Case) -> EvaluatedCase | None:
    """Return the error verdict if an input of a case could not be made; None for other cases."""
    error = input_error(case)
    if error is None:
        return None
    return EvaluatedCase(case, run_error_result(FailureKind.GENERATOR, error), inputs={})


def _demand(attempt: Attempt) -> None:
    """Raise RunnerError ``reference-failed`` if the reference gave no outputs."""
    error = attempt.outcome.error
    if error is not None:
        raise RunnerError(Problem("reference-failed", error.message))


@contextmanager
def open_evaluator(
    pool: Pool,
    subject: Subject,
    cancel: Event | None = None,
    *,
    facts: ReferenceFacts | None = None,
) -> Iterator[CaseEvaluator]:
    """Open warm sessions for one subject in a context; close them at its end."""
    with ExitStack() as stack:
        yield CaseEvaluator(pool, subject, stack, cancel, facts=facts)


# Judge a case step by step, after judging it in one request ended the reference's process.


def ask_expected(
    reference: ProgramSession, setup: Setup, about: PreparedBatch, *, bring: bool
) -> tuple[Attempt, JudgeRequest]:
    """Run the reference on a case in float64, or in the case's dtype if float64 ends the process.

    If the reference only raises an exception in float64, the judge service itself runs it again in
    the case's dtype.
    """
    attempt, request = _ask(reference, setup, about, bring=bring)
    if not attempt.ended:
        return attempt, request
    attempt, request = _ask(reference, setup, about, bring=False)
    if attempt.ended and setup.widens and about.widens:
        about.widens = False
        attempt, request = _ask(reference, setup, about, bring=False)
    if not bring or not attempt.outcome.ok:
        return attempt, request
    request.bring = True
    return _with_probe_or_without(reference, setup, request), request


def _ask(
    reference: ProgramSession, setup: Setup, about: PreparedBatch, *, bring: bool
) -> tuple[Attempt, JudgeRequest]:
    request = JudgeRequest(setup, about, method="expected")
    request.bring = bring
    return reference.ask(request), request


def _with_probe_or_without(
    reference: ProgramSession, setup: Setup, request: JudgeRequest
) -> Attempt:
    """Make a request; if the process ends, repeat the request without probing output dtypes."""
    attempt = reference.ask(request)
    if attempt.ended and setup.probes:
        setup.probes = False
        attempt = reference.ask(request)
        setup.probes = attempt.ended  # if so, the probe was not the reason
    return attempt


def judge_in_steps(
    reference: ProgramSession, setup: Setup, request: JudgeRequest, op: RunError | None
) -> CheckResult | None:
    """Judge a case step by step; the reference's process may end in any of the steps."""
    attempt, _ = ask_expected(reference, setup, request.about, bring=False)
    early = without_outputs(request.about.cases[0], attempt.outcome.error, op)
    if early is not None:
        return early
    attempt = _with_probe_or_without(reference, setup, request)
    error = attempt.outcome.error
    if error is not None:
        changed = request.find_changes()
        request.judged = Judged([comparison_failed(error)], setup.facts, changed)
    return None
