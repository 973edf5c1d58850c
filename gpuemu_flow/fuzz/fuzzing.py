"""Fuzzing: judge many cases of an op as fast as its programs run, and cache every verdict."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cached_property

from gpuemu_flow.engine.signals import WAKE_SECONDS
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import CancelledRunError
from gpuemu_flow.fuzz.case_source import CaseSource, case_stream
from gpuemu_flow.fuzz.outcome import FuzzOutcome, Judged
from gpuemu_flow.fuzz.subjects import OpSubject, dtypes_of, op_subject
from gpuemu_flow.judging.case_evaluator import SESSIONS_PER_EVALUATOR, CaseEvaluator, open_evaluator
from gpuemu_flow.judging.checks import FULL_CHECKS, PLAIN
from gpuemu_flow.judging.evaluated import EvaluatedCase, input_bytes
from gpuemu_flow.judging.expected_store import ExpectedStore
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.runners.api import Checks
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.store.discovered import SeenInputs
from gpuemu_flow.store.failures import FailureStore
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.tasks.compare import cached_verdict
from gpuemu_flow.types import BAD, Case, Json, Verdict

VERSION = 3
FULLY_CHECKED_FIRST, FULLY_CHECKED_EVERY = 8, 32
WRITE_BATCH = 50  # verdicts per transaction of the action cache


@dataclass(frozen=True)
class FuzzOptions:
    """Options of a fuzz command.

    Attributes
    ----------
    iterations : int or None
        Cases per op; None with a `time_limit` means as many as it allows.
    seed : int or None
        Master seed; None takes the workspace's.
    dtypes, strategies, layouts : tuple of str
        Empty means the op's own.
    shapes : tuple of shape
        Exactly these; see `cases.op_schema.with_shapes`.
    fail_fast : bool
    time_limit : float or None
        Seconds per op.
    jobs : int
    force : bool
        True: the action cache is not asked.
    confirm : bool
        New cases are run, to confirm the causes of failures.
    """

    iterations: int | None = 100
    seed: int | None = None
    dtypes: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    fail_fast: bool = False
    time_limit: float | None = None
    jobs: int = 1
    force: bool = False
    confirm: bool = True


def checks_for(number: int) -> Checks:
    """Return the checks of a case: all for the first and some later cases, else few."""
    full = number < FULLY_CHECKED_FIRST or number % FULLY_CHECKED_EVERY == 0
    return FULL_CHECKS if full else PLAIN


def expected_key(subject: OpSubject) -> str:
    """Return the key of everything that decides the reference's outputs on a case."""
    asked = [subject.subject.dtype, subject.subject.reference_dtype]
    return digest_json([subject.reference_key, *asked])


def verdict_key(subject: OpSubject) -> str:
    """Return the key of everything known before a run that decides the verdicts on an op."""
    keys = [subject.op_key, subject.reference_key, subject.judge_key]
    return digest_json(["fuzz", VERSION, *keys])


class _FuzzWorker:
    """One thread's warm programs of one subject, and the cases that wait for the next batch."""

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
        self.waiting: list[tuple[int, list[Json], Case]] = []
        self.waiting_bytes = 0
        self._stack = stack
        self._opening = open_evaluator(pool, subject.subject, cancel, expected_cache=expected_cache)

    @cached_property
    def evaluator(self) -> CaseEvaluator:
        """Return the evaluator, opened when the first unknown verdict is needed."""
        return self._stack.enter_context(self._opening)

    def learn(self) -> None:
        """Add what the programs were seen to use to the key of the verdicts."""
        for who, seen in self.evaluator.observed().items():
            program = getattr(self.subject.subject, who)
            self.inputs.learn(f"{who} {id(self)}", seen, program.given)
        if self._expected_cache.inputs is not None:
            self.inputs.join(self._expected_cache.inputs.used)


class Fuzzer:
    """Fuzzes one op.

    Parameters
    ----------
    workspace : Workspace
        Its run lock need not be held: verdicts go into the action cache only.
    op : str
    options : FuzzOptions
    on_case : callable
        Called with each `Judged` as it is known, from several threads, one at a time.
    on_failure : callable
        Called with the `EvaluatedCase` of a case that failed, while its tensors are valid.
    cancel : threading.Event
        Set to end the run; what was judged is kept.
    """

    def __init__(
        self,
        workspace: Workspace,
        op: str,
        options: FuzzOptions,
        *,
        on_case: Callable[[Judged], None] = lambda _: None,
        on_failure: Callable[[OpSubject, EvaluatedCase], None] = lambda *_: None,
        cancel: threading.Event | None = None,
    ) -> None:
        self._cache = workspace.cache
        self._op = op
        self._options = options
        self._on_case = on_case
        self._on_failure = on_failure
        self._cancel = cancel or threading.Event()
        self.subjects = [
            op_subject(workspace, op, dtype) for dtype in dtypes_of(workspace, op, options.dtypes)
        ]
        self._size_limit = workspace.settings.size_limit
        actions, force = self._cache.actions, options.force
        self._inputs, self._expected_cache = [], []
        for subject in self.subjects:
            sources = subject.op_sources | subject.reference_sources
            key, lookup = expected_key(subject), workspace.inputs
            about = SeenInputs(actions, key, lookup, subject.reference_sources, force=force)
            self._expected_cache.append(ExpectedStore(self._cache, key, inputs=about, force=force))
            about = SeenInputs(actions, verdict_key(subject), lookup, sources, force=force)
            self._inputs.append(about)
        self._seed = self.subjects[0].seed if options.seed is None else options.seed
        self._lock = threading.Lock()
        self._unwritten: list[tuple[SeenInputs, list[Json], Json]] = []
        self._errors: list[BaseException] = []

    def run(self) -> FuzzOutcome:
        """Judge the cases.

        Raises
        ------
        UsageError
            ``bad-shape``.
        FlowError
            When the cache or the workers cannot be used.
        """
        begin = time.perf_counter()
        outcome = FuzzOutcome(self._op, self._seed)
        source = self._source()
        jobs = max(1, self._options.jobs)
        sessions = jobs * SESSIONS_PER_EVALUATOR * len(self.subjects)
        with Pool(sessions, staging=self._cache.staging) as pool:
            threads = [
                threading.Thread(target=self._work, args=(pool, source, outcome), daemon=True)
                for _ in range(jobs)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(WAKE_SECONDS)  # else a signal might wait with it
        self._write(force=True)
        if self._size_limit and any(expected_cache.kept for expected_cache in self._expected_cache):
            self._cache.blobs.collect(self._size_limit, FailureStore(self._cache).pinned())
        if self._errors:
            raise self._errors[0]
        outcome.interrupted = self._cancel.is_set()
        outcome.duration_s = time.perf_counter() - begin
        return outcome

    def _source(self) -> CaseSource:
        options = self._options
        streams = [
            case_stream(
                subject,
                seed=self._seed,
                shapes=options.shapes,
                strategies=options.strategies,
                layouts=options.layouts,
            )
            for subject in self.subjects
        ]
        return CaseSource(streams, iterations=options.iterations, time_limit=options.time_limit)

    def _work(self, pool: Pool, source: CaseSource, outcome: FuzzOutcome) -> None:
        """Judge one thread's share of the cases."""
        with ExitStack() as stack:
            lanes: dict[int, _FuzzWorker] = {}
            try:
                while not self._cancel.is_set() and (item := source.next()) is not None:
                    number, which, case = item
                    if which not in lanes:
                        expected_cache = self._expected_cache[which]
                        lanes[which] = _FuzzWorker(
                            self.subjects[which],
                            pool,
                            stack,
                            self._cancel,
                            expected_cache,
                            self._inputs[which],
                        )
                    for judged in self._judged(lanes[which], number, case):
                        self._tell(judged, source, outcome)
                for fuzz_worker in lanes.values():
                    for judged in self._judge_waiting(fuzz_worker):
                        self._tell(judged, source, outcome)
            except CancelledRunError:
                pass
            except BaseException as error:
                self._errors.append(error)
                source.stop()

    def _tell(self, judged: Judged, source: CaseSource, outcome: FuzzOutcome) -> None:
        with self._lock:
            outcome.add(judged)
            self._on_case(judged)
        if outcome.timed_out_again or (self._options.fail_fast and judged.result.verdict in BAD):
            source.stop()

    def _judged(self, fuzz_worker: _FuzzWorker, number: int, case: Case) -> Iterator[Judged]:
        """Take up one case, and yield each verdict that is known by then."""
        key: list[Json] = [checks_for(number) is FULL_CHECKS, case.identity()]
        known = fuzz_worker.inputs.find(
            lambda b: cached_verdict(self._cache, digest_json([b, *key]))
        )
        if known is not None:
            yield Judged(number, case, known, cached=True)
            return
        checks = checks_for(number)
        if checks is not PLAIN or self._options.fail_fast:
            yield self._keep(fuzz_worker, number, key, fuzz_worker.evaluator.judge(case, checks))
            return
        nbytes = input_bytes(case)
        if not fuzz_worker.evaluator.batch_size.admits(
            len(fuzz_worker.waiting) + 1, fuzz_worker.waiting_bytes + nbytes
        ):
            yield from self._judge_waiting(fuzz_worker)
        fuzz_worker.waiting.append((number, key, case))
        fuzz_worker.waiting_bytes += nbytes

    def _judge_waiting(self, fuzz_worker: _FuzzWorker) -> Iterator[Judged]:
        waiting, fuzz_worker.waiting, fuzz_worker.waiting_bytes = fuzz_worker.waiting, [], 0
        if waiting and not self._cancel.is_set():
            evaluator = fuzz_worker.evaluator.judge_all([case for _, _, case in waiting])
            for (number, key, _), evaluated in zip(waiting, evaluator, strict=True):
                yield self._keep(fuzz_worker, number, key, evaluated)

    def _keep(
        self, fuzz_worker: _FuzzWorker, number: int, key: list[Json], evaluated: EvaluatedCase
    ) -> Judged:
        """Record a failure while its tensors are valid, and the verdict."""
        verdict = evaluated.result.verdict
        if verdict in BAD:
            with self._lock:
                self._on_failure(fuzz_worker.subject, evaluated)
        fuzz_worker.learn()
        if verdict is not Verdict.ERROR:
            self._write((fuzz_worker.inputs, key, evaluated.result.to_json()))
        return Judged(number, evaluated.case, evaluated.result)

    def _write(self, *records: tuple[SeenInputs, list[Json], Json], force: bool = False) -> None:
        """Store verdicts in groups, since one transaction costs more than judging a tiny case.

        Verdicts whose programs, or files that these read, were edited meanwhile are dropped.
        """
        with self._lock:
            self._unwritten += records
            if len(self._unwritten) < WRITE_BATCH and not (force and self._unwritten):
                return
            unwritten, self._unwritten = self._unwritten, []
            bases = {id(inputs): inputs.key() for inputs, _, _ in unwritten}
            self._cache.actions.put_many(
                (digest_json([base, *key]), result)
                for inputs, key, result in unwritten
                if (base := bases[id(inputs)]) is not None
            )
