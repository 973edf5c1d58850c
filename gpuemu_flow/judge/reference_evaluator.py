"""Judge outputs that were computed elsewhere, with a warm worker of the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.cases.generated_values import is_made, unmade
from gpuemu_flow.judge.expected_store import ExpectedStore
from gpuemu_flow.judge.generated import usable, with_generated
from gpuemu_flow.judge.judge import Judge
from gpuemu_flow.judge.judge_requests import (
    Evaluation,
    GivenBatch,
    GivenCase,
    JudgeRequest,
    PreparedBatch,
    Setup,
    StoredRequest,
)
from gpuemu_flow.judge.subject import Subject, widens
from gpuemu_flow.judge.traits import OpTraits
from gpuemu_flow.judge.verdicts import (
    StoredCase,
    comparison_failed,
    input_error,
    with_violations,
    without_outputs,
)
from gpuemu_flow.model.errors import Problem, RunnerError
from gpuemu_flow.model.observed import Observation
from gpuemu_flow.model.types import Case, CheckResult, Failure
from gpuemu_flow.numerics.operand import Rounding
from gpuemu_flow.workers.api import OpError, Program, RunError
from gpuemu_flow.workers.attempt import MALFORMED, Attempt
from gpuemu_flow.workers.pool import Pool
from gpuemu_flow.workers.tensors import as_plain_array, demand_bools
from gpuemu_flow.workers.work import ProgramSession

Arrays = Mapping[str, NDArray[Any]]


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


class ReferenceEvaluator:
    """Judges given outputs of one subject with a warm reference. Not thread-safe."""

    def __init__(
        self,
        pool: Pool,
        subject: Subject,
        stack: ExitStack,
        cancel: Event | None,
        *,
        expected_cache: ExpectedStore | None = None,
        allowed: Mapping[str, list[str]] | None = None,
    ) -> None:
        """Start no worker yet; `allowed` are the outputs' dtypes, if they are known."""
        self.subject = subject
        self._pool = pool
        self._stack = stack
        self._cancel = cancel
        self._reference = self._session(subject.reference)
        self._generator_seen = Observation()
        self._setup = Setup(
            dtype=subject.dtype,
            widens=widens(subject.dtype, subject.reference_dtype),
            compare=subject.compare,
            samples=[case.to_json() for case in self._samples()],
        )
        self._setup.facts["allowed"] = allowed
        self._expected_cache = expected_cache
        if expected_cache is not None:
            self._setup.facts.update(expected_cache.fact("facts") or {})

    def observed(self) -> dict[str, Observation]:
        """Return everything that each program was seen to use so far."""
        return {"reference": self._reference.observed()}

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
        return Prepared(
            case,
            inputs,
            {name: array.copy() for name, array in judge_request.outputs.items()},
            judge_request.answer["dtypes"],
            lambda actual: self._judged(about, actual, explain=False),
        )

    def judge_of(self, prepared: Prepared) -> Judge:
        """Return a judge, working in this process, for outputs of a prepared case.

        It is meant for callers that need more than verdicts.
        """
        samples, known = self.subject.samples, self._setup.facts["traits"]
        traits = None if known is None else OpTraits(**known)
        return Judge(self.subject.compare, prepared.allowed, samples, self, traits=traits)

    def judge_outputs(
        self, case: Case, inputs: Arrays, actual: Arrays, violations: Sequence[Failure] = ()
    ) -> CheckResult:
        """Judge outputs that were computed elsewhere; see `GivenCase`.

        If an output has a dtype that no op can have, the verdict is ``error``.
        """
        (found,) = self.judge_groups([[GivenCase(case, inputs, actual, violations)]])
        return found[0]

    def judge_groups(self, groups: Iterable[Sequence[GivenCase]]) -> Iterator[list[CheckResult]]:
        """Judge given outputs as `judge_outputs` does, with one message to the reference per group.

        While the reference's worker judges a group, the next group is taken from `groups`.
        Normally, the next group is sent to the worker before the results of this group are read.
        If the worker's answer lacks a result for some case of this group, the group is completed
        before the next group is sent. A case without a result is then judged separately.
        """
        sent: GivenBatch | None = None
        for given in groups:
            batch = GivenBatch(self._setup, given)
            results = None
            if sent is not None and not self._finish_given(sent):
                results = self._results_of(sent)
            if batch.request is not None:
                self._reference.begin_work(batch.request)
            if sent is not None:
                yield self._results_of(sent) if results is None else results
            sent = batch
        if sent is not None:
            self._finish_given(sent)
            yield self._results_of(sent)

    def _finish_given(self, sent: GivenBatch) -> bool:
        """Wait for the worker's answer on a group; tell whether it has a result for every case."""
        if sent.request is None:
            return False
        sent.attempt = self._reference.finish_work(sent.request)
        return sent.has_all

    def _results_of(self, sent: GivenBatch) -> list[CheckResult]:
        """Return a group's results; judge each case without a result separately."""
        attempt = sent.attempt
        if sent.is_answered:
            try:
                self._setup.facts = sent.read()
            except MALFORMED:  # the program wrote the answer
                self._reference.abandon()
        elif attempt is not None and len(sent.together) == 1:
            (number,) = sent.together
            sent.results[number] = self._after_trouble(attempt, sent.plain[number])
        return [
            self._judged_alone(sent, number) if result is None else result
            for number, result in enumerate(sent.results)
        ]

    def _judged_alone(self, sent: GivenBatch, number: int) -> CheckResult:
        one = sent.given[number]
        about = PreparedBatch([one.case], one.inputs)
        if number in sent.refused:
            return self._without_op(about, sent.refused[number])
        return self._judged(about, sent.plain[number].outputs, one.violations)

    def _after_trouble(self, attempt: Attempt, one: GivenCase) -> CheckResult | None:
        """Return the verdict on `one`, the only case of a group whose request failed.

        `attempt` is the failed attempt at the request, and `one` holds the case with its outputs.
        There always is a verdict, although the type of the result allows None.
        """
        again = JudgeRequest(self._setup, PreparedBatch([one.case], one.inputs))
        again.actual = one.outputs
        early = self._without_comparison(attempt, again, None)
        if early is not None:
            return early
        return with_violations(only_result(again.results), one.violations)

    def judge_stored(
        self, stored: Sequence[StoredCase], locate: Callable[[str], Path]
    ) -> list[CheckResult]:
        """Judge cases with the stored outputs of both programs; `locate` finds the files of blobs.

        If the worker fails on a batch, each of its cases is judged separately.
        """
        request = StoredRequest(self._setup, stored, locate)
        error = self._reference.ask(request).outcome.error
        if error is None:
            self._setup.facts = request.facts
            pairs = zip(stored, request.results, strict=True)
            return [one.verdict(result) for one, result in pairs]
        if len(stored) > 1:
            return [result for one in stored for result in self.judge_stored([one], locate)]
        return [stored[0].verdict(comparison_failed(error))]

    def judge_error(self, case: Case, error: RunError) -> CheckResult:
        """Judge a case for which the op, run elsewhere, gave no outputs."""
        return self._without_op(PreparedBatch([case]), error)

    def _without_op(self, about: PreparedBatch, error: RunError) -> CheckResult:
        attempt, _ = ask_expected(self._reference, self._setup, about, bring=False)
        result = without_outputs(attempt.outcome.error, error)
        assert result is not None  # noqa: S101 - there is an error
        return result

    def _judged(
        self,
        about: PreparedBatch,
        actual: Arrays,
        violations: Sequence[Failure] = (),
        *,
        explain: bool = True,
    ) -> CheckResult:
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
        if early is not None:
            return early
        return with_violations(only_result(judge_request.results), violations)

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
        return without_outputs(attempt.outcome.error, op)


def _demand(attempt: Attempt) -> None:
    """Raise RunnerError ``reference-failed`` if the reference gave no outputs."""
    error = attempt.outcome.error
    if error is not None:
        raise RunnerError(Problem("reference-failed", error.message))


def only_result(results: Sequence[CheckResult | None]) -> CheckResult:
    """Return the only verdict of a request about one case."""
    (result,) = results
    if result is None:
        raise RuntimeError("the judge has to have a verdict on an only case")
    return result


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
    early = without_outputs(attempt.outcome.error, op)
    if early is not None:
        return early
    attempt = _with_probe_or_without(reference, setup, request)
    error = attempt.outcome.error
    if error is not None:
        request.results, request.facts = [comparison_failed(error)], setup.facts
        request.changed = request.find_changes()
    return None
