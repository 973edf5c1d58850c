"""Judge many cases of one op fast, in warm workers of op and reference.

``run`` works in stages, so that each stage can be cached. Fuzzing, reproducing, minimising and the
daemon judge cases directly, as fast as possible: the reference's worker makes the inputs in memory
that it shares with the op's worker, and judges the outputs there. The verdict comes from `judge`,
as in ``run``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import Any

from msgspec import Struct, field

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.cases.generated_values import is_made
from gpuemu_flow.judge.expected_store import ExpectedStore
from gpuemu_flow.judge.generated import fit_together
from gpuemu_flow.judge.judge_requests import JudgeRequest, PreparedBatch
from gpuemu_flow.judge.reference_evaluator import Arrays, ReferenceEvaluator, only_result
from gpuemu_flow.judge.subject import PLAIN, Subject
from gpuemu_flow.judge.verdicts import (
    input_error,
    run_error_result,
    with_printed,
    with_violations,
)
from gpuemu_flow.model.observed import Observation
from gpuemu_flow.model.types import DTYPES, Case, CheckResult, Failure, FailureKind
from gpuemu_flow.workers.api import Checks, Outcome
from gpuemu_flow.workers.checked import watches
from gpuemu_flow.workers.pool import Pool
from gpuemu_flow.workers.work import CallMany, ProgramSession, SharedInputs


class EvaluatedCase(Struct, frozen=True, dict=True):
    """A judged case with its tensors."""

    case: Case
    result: CheckResult
    actual: Arrays = field(default_factory=dict)
    given: Arrays | None = None
    bring_expected: Callable[[], Arrays] = dict

    @cached_property
    def inputs(self) -> Arrays:
        """Return the inputs as the op got them, in their layouts."""
        return materialise(self.case) if self.given is None else self.given

    @cached_property
    def expected(self) -> Arrays:
        """Fetch the reference's outputs, which is possible only while `actual` is valid."""
        return self.bring_expected()


class BatchSize:
    """Chooses how many cases one message to the programs has: as many as run in a short time.

    A message costs as much as a small case, so few messages are better. But the processing of a
    message cannot be interrupted and shows no progress, and the tensors of too many cases do not
    fit into the processor's cache.
    """

    MAX_CASES = 128
    MAX_BYTES = 16 << 20
    MAX_SECONDS = 0.25

    def __init__(self) -> None:
        self._allowed = 1

    def admits(self, count: int, nbytes: int) -> bool:
        """Tell whether a batch may have `count` cases with inputs of `nbytes` bytes in total."""
        return count <= 1 or (count <= self._allowed and nbytes <= self.MAX_BYTES)

    def took(self, count: int, seconds: float) -> None:
        """Record how long a batch of `count` cases took."""
        by_time = self.MAX_SECONDS / max(seconds / count, 1e-9)
        self._allowed = max(1, int(min(self.MAX_CASES, 2 * self._allowed, by_time)))


def input_bytes(case: Case) -> int:
    """Return the size of a case's inputs in bytes, without gaps."""
    return sum(math.prod(spec.shape) * DTYPES[spec.dtype].itemsize for spec in case.inputs)


SESSIONS_PER_EVALUATOR = 3  # op and reference, and a function that returns inputs


class CaseEvaluator(ReferenceEvaluator):
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
        super().__init__(pool, subject, stack, cancel, expected_cache=expected_cache)
        self._opened_op: ProgramSession | None = None
        self.batch_size = BatchSize()
        self.rounds = 0

    @property
    def _op(self) -> ProgramSession:
        """Return the op's session, opened on first use."""
        if self._opened_op is None:
            self._opened_op = self._session(self.subject.op)
        return self._opened_op

    def observed(self) -> dict[str, Observation]:
        """Return everything that ``op``, ``reference`` and ``generator`` have used so far."""
        found = super().observed()
        if self._opened_op is not None:
            found["op"] = self._opened_op.observed()
        if self.subject.generators:
            found["generator"] = self._generator_seen
        return found

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
        self.rounds += 1
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
        """Return the changes to inputs, without those to inputs that the op may change."""
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
        self._learn(judge_request)
        changed = self._modified(judge_request.changed[0]) if judge_request.changed else []
        result = only_result(judge_request.results)
        result = with_violations(result, (*changed, *outcome.violations))
        return with_printed(result, outcome.printed)

    def _files(self, cases: Sequence[Case]) -> dict[str, Any]:
        """Return the files with stored outputs of the reference, and paths for new such files.

        The result holds the fields `known` and `stage` of `PreparedBatch`.
        """
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
        """Store the reference's outputs, and facts about it, so that it need not run again."""
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


def _not_run(case: Case) -> EvaluatedCase | None:
    """Return the error verdict if an input of a case could not be made; None for other cases."""
    error = input_error(case)
    if error is None:
        return None
    return EvaluatedCase(case, run_error_result(FailureKind.GENERATOR, error), given={})


@contextmanager
def open_evaluator(
    pool: Pool,
    subject: Subject,
    cancel: Event | None = None,
    *,
    expected_cache: ExpectedStore | None = None,
) -> Iterator[CaseEvaluator]:
    """Open warm sessions for one subject in a context; close them at its end."""
    with ExitStack() as stack:
        yield CaseEvaluator(pool, subject, stack, cancel, expected_cache=expected_cache)
