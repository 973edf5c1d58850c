"""Judge the cases of an op in one dtype, in batches, with programs that stay loaded."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property

from gpuemu_flow.fuzz.subjects import OpSubject
from gpuemu_flow.fuzz.verdict_cache import checks_for
from gpuemu_flow.judging.case_evaluator import CaseEvaluator, open_evaluator
from gpuemu_flow.judging.checks import PLAIN
from gpuemu_flow.judging.evaluated import EvaluatedCase, input_bytes
from gpuemu_flow.judging.expected_store import ExpectedStore
from gpuemu_flow.observed import Observation
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.store.discovered import SeenInputs
from gpuemu_flow.types import Case, Json


@dataclass(frozen=True)
class QueuedCase:
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
        nbytes = input_bytes(queued.case)
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
