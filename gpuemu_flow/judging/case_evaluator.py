"""Judge many cases of one op fast, in warm workers of op and reference.

``run`` works in stages, so that each can be cached. Fuzzing, reproducing, minimising and the
daemon judge one case at a time, as fast as possible: the reference's worker makes the inputs in
memory that it shares with the op's worker, and judges the outputs there. The verdict comes from
`judge`, as in ``run``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.cases.generated_values import is_made, unmade
from gpuemu_flow.errors import Problem, RunnerError
from gpuemu_flow.judging.checks import PLAIN
from gpuemu_flow.judging.evaluated import BatchSize, EvaluatedCase, Prepared
from gpuemu_flow.judging.expected_store import ExpectedStore
from gpuemu_flow.judging.generated import fit_together, usable, with_generated
from gpuemu_flow.judging.input_errors import input_error
from gpuemu_flow.judging.judge_given import GivenBatch, GivenCase
from gpuemu_flow.judging.judge_requests import Evaluation, JudgeRequest, PreparedBatch, Setup
from gpuemu_flow.judging.lost_reference import ask_expected, judge_in_steps
from gpuemu_flow.judging.reference_dtypes import widens
from gpuemu_flow.judging.subject import Subject
from gpuemu_flow.judging.verdicts import (
    run_error_result,
    with_printed,
    with_violations,
    without_outputs,
)
from gpuemu_flow.numerics.operand import Rounding
from gpuemu_flow.observed import Observation
from gpuemu_flow.runners.answers import MALFORMED
from gpuemu_flow.runners.api import Checks, OpError, Outcome, Program, RunError
from gpuemu_flow.runners.attempt import Attempt
from gpuemu_flow.runners.checked import watches
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.runners.session import ProgramSession
from gpuemu_flow.runners.tensors import as_plain_array, demand_bools
from gpuemu_flow.runners.work import CallMany, SharedInputs
from gpuemu_flow.types import Case, CheckResult, Failure, FailureKind

if TYPE_CHECKING:
    from gpuemu_flow.judging.judge import Judge

Arrays = Mapping[str, NDArray[Any]]
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
        expected_cache: ExpectedStore | None = None,
    ) -> None:
        self.subject = subject
        self._pool = pool
        self._stack = stack
        self._cancel = cancel
        self._reference = self._session(subject.reference)
        self._opened_op: ProgramSession | None = None
        self.batch_size = BatchSize()
        self._generator_seen = Observation()
        self._setup = Setup(
            dtype=subject.dtype,
            widens=widens(subject.dtype, subject.reference_dtype),
            compare=subject.compare,
            samples=[case.to_json() for case in self._samples()],
        )
        self._expected_cache = expected_cache
        if expected_cache is not None:
            self._setup.facts.update(expected_cache.fact("facts") or {})

    @property
    def has_source(self) -> bool:
        """Tell whether the reference has a float32 shadow."""
        reference = self.subject.reference
        return reference.kind != "command" and not reference.python

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

    def _session(self, program: Program) -> ProgramSession:
        return self._stack.enter_context(self._pool.session(program, cancel=self._cancel))

    def _samples(self) -> Sequence[Case]:
        """Return the subject's samples, with the values that the user's functions return."""
        if not self.subject.generators:
            return self.subject.samples
        return usable(self._made(self.subject.samples))

    def _made(self, cases: Sequence[Case]) -> list[Case]:
        def learn(seen: Observation) -> None:
            joined = self._generator_seen | seen
            if joined != self._generator_seen:
                self._generator_seen = joined

        generators = self.subject.generators
        return with_generated(self._pool, generators, cases, cancel=self._cancel, on_observed=learn)

    def made(self, case: Case) -> Case:
        """Return a case with the values that the user's functions return; see `generated`.

        A function that failed when the case was recorded is called again.
        """
        return case if is_made(case) else self._made([unmade(case)])[0]

    def judge(self, case: Case, checks: Checks = PLAIN) -> EvaluatedCase:
        """Make a case's inputs, run both programs on them, and judge."""
        case = self.made(case)
        return _not_run(case) or self._try(case, None, checks)

    def judge_arrays(self, case: Case, inputs: Arrays, checks: Checks = PLAIN) -> EvaluatedCase:
        """Judge given inputs; `case` provides the dtype, seed and strategy.

        If the checks include `decoy` or `guards`, the case also provides shapes and layouts. An
        input that could not be made when the case was recorded is made now.
        """
        if not is_made(case):
            return self.judge(case, checks)
        return self._try(case, inputs, checks)

    def judge_all(self, cases: Sequence[Case]) -> Iterator[EvaluatedCase]:
        """Judge one case after the other as `judge` does, with `PLAIN` checks and fewer messages.

        A case whose programs fail is judged again separately. `batch_size` tells how many cases to
        pass.
        """
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
        """Judge the cases of a batch that precede a failure of a program; return their verdicts."""
        arena = self._op.arena()
        if arena is None:
            return []
        about = PreparedBatch(cases, None, arena, give=True, **self._files(cases))
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
            judge_request.places = [called.slots for called in work.done]
            judge_request.watch = True
            attempt = self._reference.finish_work(judge_request)
        except BaseException:
            self._reference.abandon()
            raise
        if not attempt.outcome.ok:
            return []
        self._learn(judge_request)
        return [
            None
            if result is None
            else with_printed(
                with_violations(result, (*self._modified(changed), *called.violations)),
                called.printed,
            )
            for result, changed, called in zip(
                judge_request.results, judge_request.changed, work.done, strict=False
            )
        ]

    def _try(self, case: Case, inputs: Arrays | None, checks: Checks) -> EvaluatedCase:
        """Run both programs in parallel, then judge in the reference's worker."""
        arena = self._op.arena()
        files = self._files([case]) if inputs is None else {}
        # With more checks, this process makes the inputs, between guard zones.
        give = inputs is None and not watches(checks)
        bring = inputs is None and watches(checks)
        about = PreparedBatch([case], inputs, arena, give=give, bring=bring, **files)
        judge_request = JudgeRequest(self._setup, about)
        judge_request.watch = give
        try:
            self._reference.begin_work(judge_request)
            if inputs is None:
                judge_request.wait_prepared()
                about.give = about.bring = False
            given = self._given_by(about) if inputs is None else inputs
            # With guards or decoys, the inputs have to be made for the op's process.
            stands_for = case if checks.decoy or checks.guards else None
            self._op.begin(
                given,
                checks=checks,
                index=case.index,
                seed=case.seed,
                case=stands_for,
                decoy=about.brought[1] if about.brought else None,
            )
            actual, outcome = self._op.finish()
            result = self._settle(judge_request, actual, outcome)
        except BaseException:
            self._reference.abandon()
            raise
        return EvaluatedCase(case, result, actual, inputs, lambda: self._expected(about))

    def _modified(self, changed: Iterable[Failure]) -> list[Failure]:
        """Return the changes to inputs that the op must not modify."""
        mutates = self.subject.op.mutates
        return [failure for failure in changed if failure.output not in mutates]

    def _expected(self, about: PreparedBatch) -> Arrays:
        judge_request = JudgeRequest(self._setup, about, method="expected")
        return judge_request.outputs if self._reference.ask(judge_request).outcome.ok else {}

    @staticmethod
    def _given_by(about: PreparedBatch) -> Arrays | SharedInputs:
        (case,) = about.cases
        if about.brought:
            return about.brought[0]
        if about.peer is None or not about.slots:
            return materialise(case)
        return SharedInputs(about.peer, about.slots[0], lambda: materialise(case))

    def _settle(self, judge_request: JudgeRequest, actual: Arrays, outcome: Outcome) -> CheckResult:
        """Return the verdict after the op has finished."""
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
        self._learn(judge_request)
        changed = self._modified(judge_request.changed[0]) if judge_request.changed else []
        result = with_violations(_only(judge_request.results), (*changed, *outcome.violations))
        return with_printed(result, outcome.printed)

    def _without_comparison(
        self, attempt: Attempt, judge_request: JudgeRequest, op: RunError | None
    ) -> CheckResult | None:
        """Return the verdict if no outputs were compared; None if the request has results."""
        if attempt.ended:
            judge_request.method = "judge"
            return judge_in_steps(self._reference, self._setup, judge_request, op)
        return without_outputs(attempt.outcome.error, op)

    def _files(self, cases: Sequence[Case]) -> dict[str, Any]:
        """Return the files with the reference's stored outputs, and the paths for new files."""
        if self._expected_cache is None:
            return {}
        found = [self._expected_cache.find(case) for case in cases]
        stage = (
            []
            if self._expected_cache.full
            else [self._expected_cache.staging_path() for _ in cases]
        )
        return {"known": [None if path is None else str(path) for path in found], "stage": stage}

    def _learn(self, judge_request: JudgeRequest) -> None:
        """Store outputs of the reference, and facts about it, so that it need not run again."""
        news = self._setup.facts != judge_request.facts
        self._setup.facts = judge_request.facts
        if self._expected_cache is None:
            return
        self._expected_cache.learn(self._reference.observed(), self.subject.reference.given)
        if news:
            self._expected_cache.remember("facts", judge_request.facts)
        about = judge_request.about
        for case, path, digest in zip(about.cases, about.stage, judge_request.staged, strict=False):
            if digest:
                self._expected_cache.keep(case, Path(path), digest)

    def prepare(self, case: Case, inputs: Arrays | None = None) -> Prepared:
        """Make a case's inputs and the reference's outputs, to judge outputs computed elsewhere.

        Parameters
        ----------
        case : Case
        inputs : mapping of str to ndarray, optional
            The inputs; by default those that follow from the case.

        Raises
        ------
        RunnerError
            ``reference-failed``.
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
        return Prepared(
            case,
            inputs,
            {name: array.copy() for name, array in judge_request.outputs.items()},
            judge_request.answer["dtypes"],
            lambda actual: self._judged(about, actual, explain=False),
        )

    def judge_of(self, prepared: Prepared) -> Judge:
        """Return a judge that works in this process, for callers that need more than verdicts."""
        from gpuemu_flow.judging.judge import Judge  # noqa: PLC0415 - else in workers only
        from gpuemu_flow.judging.traits import OpTraits  # noqa: PLC0415

        samples, known = self.subject.samples, self._setup.facts["traits"]
        traits = None if known is None else OpTraits(**known)
        return Judge(self.subject.compare, prepared.allowed, samples, self, traits=traits)

    def judge_outputs(self, case: Case, inputs: Arrays, actual: Arrays) -> CheckResult:
        """Judge outputs that were computed elsewhere.

        If an output has a dtype that no op can have, the verdict is ``error``.
        """
        (found,) = self.judge_groups([[GivenCase(case, inputs, actual)]])
        return _only(found)

    def judge_groups(
        self, groups: Iterable[Sequence[GivenCase]], *, alone: bool = True
    ) -> Iterator[list[CheckResult | None]]:
        """Judge given outputs as `judge_outputs` does, with one message to the reference per group.

        While the reference's worker judges a group, the next group is taken from `groups`. It is
        sent to the worker before the results of the previous group are read, unless a result of
        that group is missing.

        Parameters
        ----------
        alone : bool
            True to judge a case separately if its group gives no result for it; False to yield
            None.
        """
        sent: GivenBatch | None = None
        for given in groups:
            batch = GivenBatch(self._setup, given)
            results = None
            if sent is not None and not self._finish_given(sent):
                results = self._results_of(sent, alone=alone)
            if batch.request is not None:
                self._reference.begin_work(batch.request)
            if sent is not None:
                yield self._results_of(sent, alone=alone) if results is None else results
            sent = batch
        if sent is not None:
            self._finish_given(sent)
            yield self._results_of(sent, alone=alone)

    def _finish_given(self, sent: GivenBatch) -> bool:
        """Wait for the answer about a group, and tell whether it has a result for every case."""
        if sent.request is None:
            return False
        sent.attempt = self._reference.finish_work(sent.request)
        return sent.has_all

    def _results_of(self, sent: GivenBatch, *, alone: bool) -> list[CheckResult | None]:
        """Return the results of a group that the worker has answered."""
        attempt = sent.attempt
        if sent.is_answered:
            try:
                self._setup.facts = sent.read()
            except MALFORMED:  # the program wrote the answer
                self._reference.abandon()
        elif attempt is not None and alone and len(sent.together) == 1:
            (number,) = sent.together
            sent.results[number] = self._after_trouble(attempt, sent.plain[number])
        return [
            self._judged_alone(sent, number) if result is None and alone else result
            for number, result in enumerate(sent.results)
        ]

    def _judged_alone(self, sent: GivenBatch, number: int) -> CheckResult:
        one = sent.given[number]
        about = PreparedBatch([one.case], one.inputs)
        if number in sent.refused:
            return self._without_op(about, sent.refused[number])
        return self._judged(about, sent.plain[number].outputs)

    def _after_trouble(self, attempt: Attempt, one: GivenCase) -> CheckResult | None:
        """Return the verdict on a case after the reference failed in its group."""
        again = JudgeRequest(self._setup, PreparedBatch([one.case], one.inputs))
        again.actual = one.outputs
        early = self._without_comparison(attempt, again, None)
        return _only(again.results) if early is None else early

    def judge_error(self, case: Case, error: RunError) -> CheckResult:
        """Judge a case for which the op, run elsewhere, gave no outputs."""
        return self._without_op(PreparedBatch([case]), error)

    def _without_op(self, about: PreparedBatch, error: RunError) -> CheckResult:
        attempt, _ = ask_expected(self._reference, self._setup, about, bring=False)
        result = without_outputs(attempt.outcome.error, error)
        assert result is not None  # noqa: S101 - there is an error
        return result

    def _judged(self, about: PreparedBatch, actual: Arrays, *, explain: bool = True) -> CheckResult:
        judge_request = JudgeRequest(self._setup, about)
        judge_request.explain = explain
        try:
            judge_request.actual = {
                name: np.asarray(as_plain_array(array, name), order="C")
                for name, array in actual.items()
            }
            demand_bools(judge_request.actual)
        except OpError as refused:
            return self._without_op(about, refused.error)
        attempt = self._reference.ask(judge_request)
        early = self._without_comparison(attempt, judge_request, None)
        return _only(judge_request.results) if early is None else early

    def __call__(
        self, inputs: Arrays, *, shadow: bool = False, rounding: Rounding | None = None
    ) -> dict[str, NDArray[Any]]:
        """Evaluate the reference on given inputs, as the ``auto`` tolerance does.

        Raises
        ------
        RunnerError
            ``reference-failed``.
        """
        evaluation = Evaluation(self._setup, inputs, shadow=shadow, rounding=rounding)
        _demand(self._reference.ask(evaluation))
        return {name: array.copy() for name, array in evaluation.outputs.items()}


def _not_run(case: Case) -> EvaluatedCase | None:
    """Return the verdict on a case with an input that could not be made; None for other cases."""
    error = input_error(case)
    if error is None:
        return None
    return EvaluatedCase(case, run_error_result(FailureKind.GENERATOR, error), given={})


def _demand(attempt: Attempt) -> None:
    """Raise RunnerError ``reference-failed`` if the reference gave no outputs."""
    error = attempt.outcome.error
    if error is not None:
        raise RunnerError(Problem("reference-failed", error.message))


def _only(results: Sequence[CheckResult | None]) -> CheckResult:
    (result,) = results
    if result is None:
        raise RuntimeError("the judge has to have a verdict on an only case")
    return result


@contextmanager
def open_evaluator(
    pool: Pool,
    subject: Subject,
    cancel: Event | None = None,
    *,
    expected_cache: ExpectedStore | None = None,
) -> Iterator[CaseEvaluator]:
    """Open warm sessions for one subject in a context; close them at its end.

    Parameters
    ----------
    pool : Pool
    subject : Subject
    cancel : threading.Event, optional
    expected_cache : ExpectedStore, optional
        Store for the outputs of a slow reference.
    """
    with ExitStack() as stack:
        yield CaseEvaluator(pool, subject, stack, cancel, expected_cache=expected_cache)
