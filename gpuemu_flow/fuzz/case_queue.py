"""Judge batches of an op's cases with programs that stay loaded: in threads, or elsewhere."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import cached_property
from typing import Protocol

from msgspec import Struct, field

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.subjects import OpSubject, outputs_key
from gpuemu_flow.judge.case_evaluator import (
    SESSIONS_PER_EVALUATOR,
    CaseEvaluator,
    EvaluatedCase,
    open_evaluator,
)
from gpuemu_flow.judge.known import KnownResults, read_verdict
from gpuemu_flow.judge.subject import FULL_CHECKS, PLAIN
from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.errors import CancelledRunError
from gpuemu_flow.model.types import Case, CheckResult, Observation, Verdict
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.keys import Discovered, Lookup, SeenInputs, digest_json, digest_record
from gpuemu_flow.workers.api import Checks
from gpuemu_flow.workers.pool import Pool

VERSION = 3
FULLY_CHECKED_FIRST, FULLY_CHECKED_EVERY = 8, 32


def checks_for(number: int) -> Checks:
    """Return the checks for the case with a given number in a run: all of them, or only a few. The
    first `FULLY_CHECKED_FIRST` cases get all checks, and so does every further case whose number is
    a multiple of `FULLY_CHECKED_EVERY`."""
    full = number < FULLY_CHECKED_FIRST or number % FULLY_CHECKED_EVERY == 0
    return FULL_CHECKS if full else PLAIN


class QueuedCase(Struct, frozen=True):
    """A case that has to be judged; `key` is what its verdict is kept under, see `case_key`."""

    number: int
    case: Case
    key: str = ""


# Find verdicts that are known, and keep new ones.


def verdict_key(subject: OpSubject) -> str:
    """Return a digest of all facts, except the cases, that decide verdicts. Facts that become known
    only by a run are not part of it."""
    keys = [subject.op_key, subject.reference_key, subject.judge_key]
    return digest_json(["fuzz", VERSION, *keys])


def case_key(number: int, case: Case) -> str:
    """Return the part of a verdict's key that depends on the case and on its number in the run."""
    return digest_record((checks_for(number) is FULL_CHECKS, case.identity()))


def known_verdicts(
    cache: WorkspaceCache, subject: OpSubject, lookup: Lookup, *, force: bool
) -> KnownResults[CheckResult]:
    """Return the known verdicts on one op, each about what `case_key` returns."""
    return KnownResults(
        cache.actions,
        verdict_key(subject),
        lookup,
        subject.op_sources | subject.reference_sources,
        read=read_verdict,
        write=plain,
        force=force,
    )


def keep(known: KnownResults[CheckResult], key: str, result: CheckResult) -> None:
    """Keep a new verdict, unless it is ``error`` or ``skipped``: it might differ the next time."""
    if result.verdict not in (Verdict.ERROR, Verdict.SKIPPED):
        known.put(key, result)


def reference_inputs(
    cache: WorkspaceCache, subject: OpSubject, lookup: Lookup, *, force: bool
) -> SeenInputs:
    """Return what collects the inputs of an op's reference, which are hidden from the op."""
    asked = subject.subject
    key = outputs_key(subject.reference_key, asked.dtype, asked.reference_dtype)
    return SeenInputs(cache.actions, key, lookup, subject.reference_sources, force=force)


# Judge with warm programs.


class CaseQueue:
    """Judges the cases of an op in one dtype with one pair of programs. Not thread-safe."""

    def __init__(
        self,
        subject: OpSubject,
        pool: Pool,
        stack: ExitStack,
        cancel: threading.Event,
        inputs: SeenInputs,
        reference: SeenInputs,
    ) -> None:
        self._subject = subject
        self._inputs = inputs
        self._reference = reference
        self._cancel = cancel
        self._learnt: dict[str, Observation] = {}
        self._learnt_rounds = -1
        self._stack = stack
        self._opening = open_evaluator(pool, subject.subject, cancel)

    @cached_property
    def _evaluator(self) -> CaseEvaluator:
        return self._stack.enter_context(self._opening)

    def judge(
        self, cases: Iterable[QueuedCase], *, alone: bool
    ) -> Iterator[tuple[QueuedCase, EvaluatedCase]]:
        """Yield the cases with their outcomes, not always in their order. Those that get few checks
        are judged many in one message, unless `alone` is true."""
        waiting: list[QueuedCase] = []
        nbytes = 0
        for queued in cases:
            if self._cancel.is_set():
                return
            checks = checks_for(queued.number)
            if checks is not PLAIN or alone:
                yield queued, self._learned(self._evaluator.judge(queued.case, checks))
                continue
            nbytes += queued.case.nbytes
            if not self._evaluator.batch_size.admits(len(waiting) + 1, nbytes):
                yield from self._together(waiting)
                waiting, nbytes = [], queued.case.nbytes
            waiting.append(queued)
        yield from self._together(waiting)

    def _together(
        self, waiting: Sequence[QueuedCase]
    ) -> Iterator[tuple[QueuedCase, EvaluatedCase]]:
        if waiting and not self._cancel.is_set():
            evaluated = self._evaluator.judge_all([queued.case for queued in waiting])
            for queued, outcome in zip(waiting, evaluated, strict=True):
                yield queued, self._learned(outcome)

    def _learned(self, evaluated: EvaluatedCase) -> EvaluatedCase:
        """Record the inputs that the programs have used so far; return `evaluated` unchanged. These
        inputs, such as files, are part of the key under which verdicts are cached."""
        if self._learnt_rounds != self._evaluator.rounds:
            self._learnt_rounds = self._evaluator.rounds
            observed = self._evaluator.observed()
            for who, seen in observed.items():
                if self._learnt.get(who) is not seen:  # which is rare
                    program = self._subject.subject.program(who)
                    self._inputs.learn(f"{who} {id(self)}", seen, program.given)
                    if who == "reference":
                        self._reference.learn(f"{who} {id(self)}", seen, program.given)
                        self._reference.key()  # stores what it used
            self._learnt = observed
        return evaluated


class WarmPrograms:
    """The programs of an op in each of its dtypes, kept loaded for several threads."""

    def __init__(
        self,
        cache: WorkspaceCache,
        subjects: Sequence[OpSubject],
        inputs: Sequence[tuple[SeenInputs, SeenInputs]],
        *,
        threads: int,
        alone: bool,
        pool: Pool | None = None,
    ) -> None:
        """`inputs` learn what both programs, and the reference, use, for each of the `subjects`.
        `alone` is that of `CaseQueue.judge`."""
        self.cancel = threading.Event()
        self._subjects = subjects
        self._inputs = inputs
        self._alone = alone
        self._free: list[list[CaseQueue]] = [[] for _ in subjects]
        self._lock = threading.Lock()
        self._stack = ExitStack()
        sessions = threads * SESSIONS_PER_EVALUATOR * len(subjects)
        self._pool = pool or self._stack.enter_context(Pool(sessions))

    def judge(
        self, which: int, cases: Sequence[QueuedCase]
    ) -> Iterator[tuple[QueuedCase, EvaluatedCase]]:
        """Yield the outcomes of cases of the dtype with index `which`. After an error, the programs
        are not used again."""
        with self._lock:
            free = self._free[which]
            one = free.pop() if free else self._new(which)
        yield from one.judge(cases, alone=self._alone)
        with self._lock:
            free.append(one)

    def _new(self, which: int) -> CaseQueue:
        return CaseQueue(
            self._subjects[which],
            self._pool,
            self._stack,
            self.cancel,
            *self._inputs[which],
        )

    def close(self) -> None:
        self.cancel.set()
        with suppress(CancelledRunError):
            self._stack.close()


# Workers that judge the cases of a fuzz run.


class CaseBatch(Struct, frozen=True):
    """Cases of one op and dtype that a worker judges one after the other."""

    which: int
    cases: tuple[QueuedCase, ...]

    def halves(self) -> tuple[CaseBatch, CaseBatch] | None:
        middle = len(self.cases) // 2
        if not middle:
            return None
        return CaseBatch(self.which, self.cases[:middle]), CaseBatch(
            self.which, self.cases[middle:]
        )


class BatchVerdict(Struct, frozen=True):
    """A worker's verdict on one case, and the case if the worker had to complete it."""

    result: CheckResult
    made: Case | None = None


class BatchReply(Struct, frozen=True):
    """A worker's reply to a batch, or to a part of it. A worker on another machine tells the key of
    its verdicts, and the names and states of all inputs that its programs used; `worker` is empty
    for a thread of this process."""

    worker: str
    verdicts: tuple[BatchVerdict, ...]
    key: str = ""
    names: Discovered = field(default_factory=Discovered)
    parts: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class Farm(Protocol):
    """Workers that judge the cases of one op. Not thread-safe."""

    @property
    def first_batch(self) -> int:
        """Return the number of cases in the first batch."""

    @property
    def capacity(self) -> int:
        """Return the number of batches that keep all workers busy."""

    @property
    def outstanding(self) -> int:
        """Return the number of batches without a reply."""

    def submit(self, batch: CaseBatch, known: Collection[str]) -> None:
        """Send a batch of cases."""

    def replies(self, timeout: float) -> list[tuple[CaseBatch, BatchReply | None]]:
        """Wait at most `timeout` seconds for replies, and return those that have arrived. A batch
        whose worker died is divided and sent again. The reply is None for a batch of one case that
        killed every worker that received it. Raises FlowError: ``cluster-lost``,
        ``cluster-no-workers``, ``cluster-worker-differs`` and other errors that end the run."""


class Cluster(Protocol):
    """Machines that judge cases."""

    def open_farm(
        self, workspace: Workspace, op: str, subjects: Sequence[OpSubject], *, alone: bool
    ) -> AbstractContextManager[Farm]:
        """Return a context in which workers judge the cases of one op."""


Reply = tuple[CaseBatch, BatchReply | None]
PER_THREAD = 2
"""Number of batches per thread: one runs while another waits."""


class ThreadFarm:
    """Threads of this process as a `Farm`; they reply to each case as soon as it is judged."""

    first_batch = 1

    def __init__(self, programs: WarmPrograms, threads: int) -> None:
        self.capacity = PER_THREAD * threads
        self.outstanding = 0
        self._programs = programs
        self._batches: queue.SimpleQueue[CaseBatch | None] = queue.SimpleQueue()
        self._arrived: queue.SimpleQueue[Reply | BaseException | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, batch: CaseBatch, _: Collection[str]) -> None:
        self.outstanding += 1
        self._batches.put(batch)

    def replies(self, timeout: float) -> list[Reply]:
        found: list[Reply] = []
        with suppress(queue.Empty):
            arrived = self._arrived.get(timeout=timeout)
            while True:
                if arrived is None:
                    self.outstanding -= 1
                elif isinstance(arrived, BaseException):
                    if not found:
                        raise arrived
                    self._arrived.put(arrived)  # for the next call
                    break
                else:
                    found.append(arrived)
                arrived = self._arrived.get_nowait()
        return found

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                self._judge(batch)
            except CancelledRunError:
                return
            except BaseException as error:
                self._arrived.put(error)
            self._arrived.put(None)

    def _judge(self, batch: CaseBatch) -> None:
        begin = time.perf_counter()
        judged = self._programs.judge(batch.which, batch.cases)
        for count, (queued, evaluated) in enumerate(judged, 1):
            made = None if evaluated.case is queued.case else evaluated.case
            seconds = (time.perf_counter() - begin) / count
            reply = BatchReply("", (BatchVerdict(evaluated.result, made),), seconds=seconds)
            self._arrived.put((CaseBatch(batch.which, (queued,)), reply))

    def close(self) -> None:
        self._programs.cancel.set()
        for _ in self._threads:
            self._batches.put(None)
        for thread in self._threads:
            thread.join()
        self._programs.close()
