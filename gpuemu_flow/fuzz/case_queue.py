"""Judge the cases of an op in one dtype, in batches, with programs that stay loaded."""

from __future__ import annotations

import threading
import time
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
from gpuemu_flow.judge.subject import FULL_CHECKS, PLAIN
from gpuemu_flow.model.observed import Observation
from gpuemu_flow.model.types import Case, CheckResult, Json, Verdict
from gpuemu_flow.store.discovered import Lookup, SeenInputs
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.store.workspace_cache import WorkspaceCache
from gpuemu_flow.tasks.compare import cached_verdict
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
FEWEST_WRITTEN, MOST_WRITTEN = 50, 1000
"""Minimum and maximum number of verdicts per transaction of the action cache."""

WRITE_SECONDS = 0.25
"""Minimum time in seconds between transactions with fewer than `MOST_WRITTEN` verdicts."""


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


class VerdictCache:
    """Finds and keeps the verdicts on one op. Thread-safe."""

    def __init__(
        self,
        cache: WorkspaceCache,
        subjects: Sequence[OpSubject],
        lookup: Lookup,
        *,
        force: bool,
    ) -> None:
        self._cache = cache
        self.inputs = [
            SeenInputs(
                cache.actions,
                verdict_key(subject),
                lookup,
                subject.op_sources | subject.reference_sources,
                force=force,
            )
            for subject in subjects
        ]
        self._lock = threading.Lock()
        self._unwritten: list[tuple[SeenInputs, list[Json], Json]] = []
        self._written = time.monotonic()

    def find(self, which: int, key: list[Json]) -> CheckResult | None:
        """Return the cached verdict on a case, if it holds for the present inputs; else None.

        `which` is the index of the op's dtype, and `key` is the result of `case_key`.
        """
        return self.inputs[which].find(
            lambda b: cached_verdict(self._cache, digest_json([b, *key]))
        )

    def put(self, which: int, key: list[Json], result: CheckResult) -> None:
        """Cache a verdict on a case, unless it is ``error`` or ``skipped``.

        An error might not occur the next time. `which` and `key` are those of `find`.
        """
        if result.verdict not in (Verdict.ERROR, Verdict.SKIPPED):
            self._write((self.inputs[which], key, result.to_json()))

    def flush(self) -> None:
        """Store the verdicts that are still in memory."""
        self._write(force=True)

    def _write(self, *records: tuple[SeenInputs, list[Json], Json], force: bool = False) -> None:
        """Add verdicts to those that wait in memory, and store all waiting verdicts if it is time.

        Verdicts are stored in groups, since a transaction costs more than a tiny case. With
        `force`, all are stored at once. A verdict is dropped instead if a program, or a file that
        the program reads, was edited meanwhile.
        """
        with self._lock:
            self._unwritten += records
            if not self._is_due(force=force):
                return
            self._written = time.monotonic()
            unwritten, self._unwritten = self._unwritten, []
            seen = {id(inputs): inputs for inputs, _, _ in unwritten}
            bases = {which: inputs.key() for which, inputs in seen.items()}
            self._cache.actions.put_many(
                (digest_json([base, *key]), result)
                for inputs, key, result in unwritten
                if (base := bases[id(inputs)]) is not None
            )

    def _is_due(self, *, force: bool) -> bool:
        """Tell whether to store the waiting verdicts now.

        With `force`, one verdict suffices. Otherwise, `MOST_WRITTEN` verdicts must wait, or only
        `FEWEST_WRITTEN` if the last transaction was at least `WRITE_SECONDS` ago.
        """
        count = len(self._unwritten)
        if force or count >= MOST_WRITTEN:
            return count > 0
        late = time.monotonic() >= self._written + WRITE_SECONDS
        return count >= FEWEST_WRITTEN and late
