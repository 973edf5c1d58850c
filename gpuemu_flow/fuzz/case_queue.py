"""Judge the cases of an op in one dtype, in batches, with programs that stay loaded."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property

from msgspec import Struct

from gpuemu_flow.fuzz.subjects import OpSubject, outputs_key
from gpuemu_flow.judge.case_evaluator import (
    CaseEvaluator,
    EvaluatedCase,
    open_evaluator,
)
from gpuemu_flow.judge.expected_store import ExpectedStore
from gpuemu_flow.judge.known import KnownResults, read_verdict
from gpuemu_flow.judge.subject import FULL_CHECKS, PLAIN
from gpuemu_flow.model.observed import Observation
from gpuemu_flow.model.types import Case, CheckResult, Json, Verdict
from gpuemu_flow.store.discovered import Lookup, SeenInputs
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.store.workspace_cache import WorkspaceCache
from gpuemu_flow.workers.api import Checks
from gpuemu_flow.workers.pool import Pool


class QueuedCase(Struct, frozen=True):
    """A case that has to be judged."""

    number: int
    case: Case
    key: Sequence[Json] = ()


class CaseQueue:
    """Judges the cases of an op in one dtype, in batches. Not thread-safe."""

    def __init__(
        self,
        subject: OpSubject,
        pool: Pool,
        stack: ExitStack,
        cancel: threading.Event,
        expected_cache: ExpectedStore,
        inputs: SeenInputs,
    ) -> None:
        self.subject = subject
        self.inputs = inputs
        self._expected_cache = expected_cache
        self._cancel = cancel
        self._waiting: list[QueuedCase] = []
        self._waiting_bytes = 0
        self._learnt: dict[str, Observation] = {}
        self._learnt_rounds = -1
        self._stack = stack
        self._opening = open_evaluator(pool, subject.subject, cancel, expected_cache=expected_cache)

    @cached_property
    def evaluator(self) -> CaseEvaluator:
        """Return the evaluator; it is opened when the first case has to be judged."""
        return self._stack.enter_context(self._opening)

    def take(
        self, queued: QueuedCase, *, alone: bool
    ) -> Iterator[tuple[QueuedCase, EvaluatedCase]]:
        """Add a case, and yield all outcomes that are ready now, possibly of earlier cases."""
        checks = checks_for(queued.number)
        if checks is not PLAIN or alone:
            yield queued, self._learned(self.evaluator.judge(queued.case, checks))
            return
        nbytes = queued.case.nbytes
        if not self.evaluator.batch_size.admits(
            len(self._waiting) + 1, self._waiting_bytes + nbytes
        ):
            yield from self.rest()
        self._waiting.append(queued)
        self._waiting_bytes += nbytes

    def rest(self) -> Iterator[tuple[QueuedCase, EvaluatedCase]]:
        """Judge the cases that still wait, and yield their outcomes."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if waiting and not self._cancel.is_set():
            evaluated = self.evaluator.judge_all([queued.case for queued in waiting])
            for queued, outcome in zip(waiting, evaluated, strict=True):
                yield queued, self._learned(outcome)

    def _learned(self, evaluated: EvaluatedCase) -> EvaluatedCase:
        """Record the inputs that the programs have used so far; return `evaluated` unchanged.

        These inputs, such as files, are part of the key under which verdicts are cached.
        """
        if self._learnt_rounds != self.evaluator.rounds:
            self._learnt_rounds = self.evaluator.rounds
            observed = self.evaluator.observed()
            for who, seen in observed.items():
                if self._learnt.get(who) is not seen:  # which is rare
                    program = self.subject.subject.program(who)
                    self.inputs.learn(f"{who} {id(self)}", seen, program.given)
            self._learnt = observed
        if self._expected_cache.inputs is not None:
            self.inputs.join(self._expected_cache.inputs.used)
        return evaluated


# Find a fuzz run's verdicts in the action cache, and store new ones there.


VERSION = 3
FULLY_CHECKED_FIRST, FULLY_CHECKED_EVERY = 8, 32


def checks_for(number: int) -> Checks:
    """Return the checks for the case with a given number in a run: all of them, or only a few.

    The first `FULLY_CHECKED_FIRST` cases get all checks, and so does every further case whose
    number is a multiple of `FULLY_CHECKED_EVERY`.
    """
    full = number < FULLY_CHECKED_FIRST or number % FULLY_CHECKED_EVERY == 0
    return FULL_CHECKS if full else PLAIN


def expected_key(subject: OpSubject) -> str:
    """Return a digest of everything, except the case, that decides the reference's outputs."""
    asked = subject.subject
    return outputs_key(subject.reference_key, asked.dtype, asked.reference_dtype)


def verdict_key(subject: OpSubject) -> str:
    """Return a digest of all facts, except the cases, that decide verdicts.

    Facts that become known only by a run are not part of it.
    """
    keys = [subject.op_key, subject.reference_key, subject.judge_key]
    return digest_json(["fuzz", VERSION, *keys])


def case_key(number: int, case: Case) -> list[Json]:
    """Return the part of a verdict's key that depends on the case and on its number in the run."""
    return [checks_for(number) is FULL_CHECKS, case.identity()]


def known_verdicts(
    cache: WorkspaceCache, subject: OpSubject, lookup: Lookup, *, force: bool
) -> KnownResults[CheckResult]:
    """Return the known verdicts on one op; their keys are made from the results of `case_key`."""
    return KnownResults(
        cache.actions,
        verdict_key(subject),
        lookup,
        subject.op_sources | subject.reference_sources,
        read=read_verdict,
        write=CheckResult.to_json,
        force=force,
    )


def keep(known: KnownResults[CheckResult], key: Sequence[Json], result: CheckResult) -> None:
    """Keep a new verdict, unless it is ``error`` or ``skipped``: it might differ the next time."""
    if result.verdict not in (Verdict.ERROR, Verdict.SKIPPED):
        known.put(list(key), result)
