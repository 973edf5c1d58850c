"""Fuzz an op: judge many cases as fast as its programs run, and cache every verdict."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from msgspec import Struct

from gpuemu_flow.build.revealed import revealed
from gpuemu_flow.build.signals import WAKE_SECONDS
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.case_queue import CaseQueue, QueuedCase, VerdictCache, case_key, expected_key
from gpuemu_flow.fuzz.case_source import CaseSource, case_stream
from gpuemu_flow.fuzz.outcome import MOST_FAILURES, Judged, OpFuzzOutcome
from gpuemu_flow.fuzz.remote_run import Cluster, RemoteRun
from gpuemu_flow.fuzz.subjects import OpSubject, dtypes_of, op_subject
from gpuemu_flow.judge.case_evaluator import SESSIONS_PER_EVALUATOR, EvaluatedCase
from gpuemu_flow.judge.expected_store import ExpectedStore
from gpuemu_flow.model.errors import CancelledRunError
from gpuemu_flow.model.types import BAD, Case
from gpuemu_flow.store.discovered import Discovered, SeenInputs
from gpuemu_flow.store.failures import FailureStore
from gpuemu_flow.workers import limits
from gpuemu_flow.workers.pool import Pool


class FuzzOptions(Struct, frozen=True):
    """Options of a fuzz command."""

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
    most_failures: int = MOST_FAILURES


class Fuzzer:
    """Fuzzes one op."""

    def __init__(
        self,
        workspace: Workspace,
        op: str,
        options: FuzzOptions,
        *,
        on_case: Callable[[Judged], None] = lambda _: None,
        on_failure: Callable[[OpSubject, EvaluatedCase], None] = lambda *_: None,
        cancel: threading.Event | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self._workspace = workspace
        self._cache = workspace.cache
        self._op = op
        self._options = options
        self._on_case = on_case
        self._on_failure = on_failure
        self._cancel = cancel or threading.Event()
        self._cluster = cluster
        self.subjects = [
            op_subject(workspace, op, dtype, learned=cluster is None)
            for dtype in dtypes_of(workspace, op, options.dtypes)
        ]
        self._size_limit = workspace.settings.size_limit
        self._expected_cache = [self._expected(subject) for subject in self.subjects]
        self._verdicts = VerdictCache(
            self._cache, self.subjects, workspace.inputs, force=options.force
        )
        self._ordered: list[Discovered | None] = [None for _ in self.subjects]
        self._seed = self.subjects[0].seed if options.seed is None else options.seed
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []

    def _expected(self, subject: OpSubject) -> ExpectedStore:
        actions, force, key = self._cache.actions, self._options.force, expected_key(subject)
        sources = subject.reference_sources
        about = SeenInputs(actions, key, self._workspace.inputs, sources, force=force)
        return ExpectedStore(self._cache, key, inputs=about, force=force)

    def is_outdated(self) -> bool:
        """Tell whether the op could read a file that the reference was seen to use.

        If so, the verdicts do not count: the use of the file was unknown when this object was made,
        and so the file was not hidden from the op.
        """
        for subject, expected in zip(self.subjects, self._expected_cache, strict=True):
            if subject.known is not None and expected.inputs is not None:
                used = revealed(expected.inputs.used, subject.known, self._workspace.root)
                if not set(subject.hidden).issuperset(used):
                    return True
        return False

    def run(self) -> OpFuzzOutcome:
        """Judge the cases, and return the outcome.

        Raises UsageError: ``bad-shape``. Raises FlowError: The cache, the workers or the cluster
        cannot be used. ``needs-missing``: a program uses the output of a rule without waiting for
        the rule.
        """
        begin = time.perf_counter()
        outcome = OpFuzzOutcome(self._op, self._seed, self._options.most_failures)
        source = self._source()
        if self._cluster is None:
            self._run_here(source, outcome)
        else:
            self._run_on(self._cluster, source, outcome)
        self._verdicts.flush()
        if self._size_limit and any(
            expected_cache.stored for expected_cache in self._expected_cache
        ):
            self._cache.blobs.collect(self._size_limit, FailureStore(self._cache).pinned())
        if self._errors:
            raise self._errors[0]
        outcome.interrupted = self._cancel.is_set()
        outcome.duration_s = time.perf_counter() - begin
        return outcome

    def _run_here(self, source: CaseSource, outcome: OpFuzzOutcome) -> None:
        """Judge the cases in threads of this process."""
        limits.tune()  # the tensors of fully checked cases come and go
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
                    thread.join(WAKE_SECONDS)  # without a limit, signals would have to wait

    def _run_on(self, cluster: Cluster, source: CaseSource, outcome: OpFuzzOutcome) -> None:
        """Let a cluster judge the cases, and handle the verdicts in the order of the cases."""
        with cluster.open_farm(
            self._workspace, self._op, self.subjects, alone=self._options.fail_fast
        ) as farm:
            lookup = self._workspace.inputs
            run = RemoteRun(farm, source, self._verdicts, lookup, self._cancel)
            try:
                for which, judged, evaluated in run.judged():
                    self._refuse_unordered(which)
                    if evaluated is not None and outcome.wants(judged):
                        self._on_failure(self.subjects[which], evaluated)
                    self._tell(judged, source, outcome)
                    if source.stopped:
                        break
            finally:
                self._verdicts.flush()

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

    def _work(self, pool: Pool, source: CaseSource, outcome: OpFuzzOutcome) -> None:
        """Judge one thread's share of the cases."""
        with ExitStack() as stack:
            queues: dict[int, CaseQueue] = {}
            try:
                while not self._cancel.is_set() and (item := source.next()) is not None:
                    number, which, case = item
                    if which not in queues:
                        queues[which] = CaseQueue(
                            self.subjects[which],
                            pool,
                            stack,
                            self._cancel,
                            self._expected_cache[which],
                            self._verdicts.inputs[which],
                        )
                    for judged in self._judged(queues[which], which, number, case, outcome):
                        self._tell(judged, source, outcome)
                for which, queue in queues.items():
                    for queued, evaluated in queue.rest():
                        self._tell(self._keep(which, queued, evaluated, outcome), source, outcome)
            except CancelledRunError:
                pass
            except BaseException as error:
                self._errors.append(error)
                source.stop()

    def _tell(self, judged: Judged, source: CaseSource, outcome: OpFuzzOutcome) -> None:
        with self._lock:
            outcome.add(judged)
            self._on_case(judged)
        if outcome.timed_out_again or (self._options.fail_fast and judged.result.verdict in BAD):
            source.stop()

    def _refuse_unordered(self, which: int) -> None:
        """Raise an error if a program used the output of a rule that it does not wait for.

        The error is RunnerError ``needs-missing``. `which` is the index in `subjects` of the
        subject to check.
        """
        used = self._verdicts.inputs[which].used
        if used is not self._ordered[which]:  # which is rare
            self.subjects[which].others.refuse(used)
            self._ordered[which] = used

    def _judged(
        self, queue: CaseQueue, which: int, number: int, case: Case, outcome: OpFuzzOutcome
    ) -> Iterator[Judged]:
        """Yield the cached verdict on a case; if there is none, queue the case.

        Most queued cases are judged later, in groups. If this call judges the case, or a group that
        was queued before, it yields the new verdicts. `number` is the number of the case, and
        `which` is the index in `subjects` of its subject.
        """
        key = case_key(number, case)
        known = self._verdicts.find(which, key)
        if known is not None:
            self._refuse_unordered(which)
            yield Judged(number, case, known, cached=True)
            return
        for queued, evaluated in queue.take(
            QueuedCase(number, case, key), alone=self._options.fail_fast
        ):
            yield self._keep(which, queued, evaluated, outcome)

    def _keep(
        self, which: int, queued: QueuedCase, evaluated: EvaluatedCase, outcome: OpFuzzOutcome
    ) -> Judged:
        """Store the verdict on a case, and report a failure that is to be recorded.

        The failure is reported at once, because the tensors of the case do not stay valid.
        """
        self._refuse_unordered(which)
        judged = Judged(queued.number, evaluated.case, evaluated.result)
        if evaluated.result.verdict in BAD:
            with self._lock:
                if outcome.wants(judged):
                    self._on_failure(self.subjects[which], evaluated)
        self._verdicts.put(which, list(queued.key), evaluated.result)
        return judged
