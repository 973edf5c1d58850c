"""Fuzzing: many cases of an op, judged as fast as its programs run, every verdict kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from gpuemu_flow.cases.op_schema import OpSchema, with_shapes
from gpuemu_flow.cases.plan import iterate_cases, plan_cases
from gpuemu_flow.engine.subjects import OpSubject, dtypes_of, op_subject
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import Problem, UsageError
from gpuemu_flow.runners.api import Checks
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.runners.process import CancelledRunError
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.tasks.compare import cached_verdict
from gpuemu_flow.tasks.trial import PLAIN, SESSIONS_PER_TRIAL, Trial, Trials, open_trials
from gpuemu_flow.types import Case, CheckResult, Json, Verdict

VERSION = 1
FULL_CHECKS = Checks(inputs_unchanged=True, guards=True, decoy=True, repeat=True)
FULLY_CHECKED_FIRST, FULLY_CHECKED_EVERY = 8, 16
WRITE_BATCH = 50  # verdicts per transaction of the action cache


@dataclass(frozen=True)
class FuzzOptions:
    """What a fuzz command asks for.

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


@dataclass(frozen=True)
class Judged:
    """One case of a fuzz run.

    Attributes
    ----------
    number : int
        Place in the run, over all dtypes.
    case : Case
    result : CheckResult
    cached : bool
    """

    number: int
    case: Case
    result: CheckResult
    cached: bool = False


@dataclass
class FuzzOutcome:
    """What fuzzing one op found, in the order of the cases whatever the number of jobs.

    Attributes
    ----------
    op : str
    seed : int
    judged : list of Judged
    duration_s : float
    interrupted : bool
    """

    op: str
    seed: int
    judged: list[Judged] = field(default_factory=list)
    duration_s: float = 0.0
    interrupted: bool = False

    def count(self, verdict: Verdict) -> int:
        """How many cases have a verdict."""
        return sum(j.result.verdict is verdict for j in self.judged)

    @property
    def failures(self) -> list[Judged]:
        """Cases that failed or ended in an error."""
        return [j for j in self.judged if j.result.verdict in (Verdict.FAILED, Verdict.ERROR)]

    @property
    def cached(self) -> int:
        """How many verdicts came out of the action cache."""
        return sum(j.cached for j in self.judged)


def checks_for(number: int) -> Checks:
    """Everything is watched on the first cases and then now and again; it costs several calls."""
    full = number < FULLY_CHECKED_FIRST or number % FULLY_CHECKED_EVERY == 0
    return FULL_CHECKS if full else PLAIN


class _Source:
    """The numbered cases of a run, handed out to several threads one by one."""

    def __init__(self, subjects: Sequence[OpSubject], options: FuzzOptions, seed: int) -> None:
        self._lock = threading.Lock()
        self._cases = self._all(subjects, options, seed)
        self._deadline = (
            None if options.time_limit is None else time.monotonic() + options.time_limit
        )
        self.stopped = False

    @staticmethod
    def _all(
        subjects: Sequence[OpSubject], options: FuzzOptions, seed: int
    ) -> Iterator[tuple[int, int, Case]]:
        streams = [_stream(subject, options, seed) for subject in subjects]

        def rounds() -> Iterator[tuple[int, Case]]:
            while True:
                for which, stream in enumerate(streams):
                    yield which, next(stream)

        numbered = ((n, which, case) for n, (which, case) in enumerate(rounds()))
        return numbered if options.iterations is None else islice(numbered, options.iterations)

    def next(self) -> tuple[int, int, Case] | None:
        """(number, subject, case), or None when there are no more."""
        with self._lock:
            late = self._deadline is not None and time.monotonic() >= self._deadline
            if self.stopped or late:
                return None
            return next(self._cases, None)

    def stop(self) -> None:
        """Hand out no more."""
        with self._lock:
            self.stopped = True


def _stream(subject: OpSubject, options: FuzzOptions, seed: int) -> Iterator[Case]:
    """The endless cases of one dtype; several exact shapes take turns.

    Raises
    ------
    UsageError
        ``bad-shape``, ``unknown-strategy``, ``unknown-layout``: at once, not in the worker threads.
    """
    schemas: list[OpSchema] = [subject.schema]
    if options.shapes:
        try:
            schemas = with_shapes(subject.schema, options.shapes)
        except ValueError as error:
            raise UsageError(Problem("bad-shape", str(error))) from None
    what: dict[str, Any] = {
        "seed": seed,
        "dtype": subject.subject.dtype,
        "strategies": options.strategies or subject.strategies,
        "layouts": options.layouts or subject.layouts,
    }
    for schema in schemas:
        plan_cases(schema, count=1, **what)
    return _in_turns([iterate_cases(schema, **what) for schema in schemas])


def _in_turns(streams: Sequence[Iterator[Case]]) -> Iterator[Case]:
    index = 0
    while True:
        for stream in streams:
            # Streams of other shapes give the same case seeds; the index keeps them apart.
            yield replace(next(stream), index=index)
            index += 1


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
        Called with the `Trial` of a case that failed, while its tensors are valid.
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
        on_failure: Callable[[OpSubject, Trial], None] = lambda *_: None,
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
        self._seed = self.subjects[0].seed if options.seed is None else options.seed
        self._lock = threading.Lock()
        self._unwritten: list[tuple[str, Json]] = []
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
        source = _Source(self.subjects, self._options, self._seed)
        jobs = max(1, self._options.jobs)
        sessions = jobs * SESSIONS_PER_TRIAL * len(self.subjects)
        with Pool(sessions, staging=self._cache.staging) as pool:
            threads = [
                threading.Thread(target=self._work, args=(pool, source, outcome), daemon=True)
                for _ in range(jobs)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self._write(force=True)
        if self._errors:
            raise self._errors[0]
        outcome.judged.sort(key=lambda judged: judged.number)
        outcome.interrupted = self._cancel.is_set()
        outcome.duration_s = time.perf_counter() - begin
        return outcome

    def _work(self, pool: Pool, source: _Source, outcome: FuzzOutcome) -> None:
        trials: dict[int, Trials] = {}
        managers = []
        try:
            while not self._cancel.is_set() and (item := source.next()) is not None:
                number, which, case = item
                key = self._key(self.subjects[which], number, case)
                known = None if self._options.force else cached_verdict(self._cache, key)
                if known is None:
                    if which not in trials:
                        manager = open_trials(pool, self.subjects[which].subject, self._cancel)
                        trials[which] = manager.__enter__()
                        managers.append(manager)
                    judged = self._try(trials[which], number, case, which, key)
                else:
                    judged = Judged(number, case, known, cached=True)
                with self._lock:
                    outcome.judged.append(judged)
                    self._on_case(judged)
                if self._options.fail_fast and judged.result.verdict in (
                    Verdict.FAILED,
                    Verdict.ERROR,
                ):
                    source.stop()
        except CancelledRunError:
            pass
        except BaseException as error:
            self._errors.append(error)
            source.stop()
        finally:
            for manager in managers:
                manager.__exit__(None, None, None)

    def _try(self, trials: Trials, number: int, case: Case, which: int, key: str) -> Judged:
        trial = trials.judge(case, checks_for(number))
        verdict = trial.result.verdict
        if verdict in (Verdict.FAILED, Verdict.ERROR):
            with self._lock:
                self._on_failure(self.subjects[which], trial)
        if verdict is not Verdict.ERROR:
            self._write((key, trial.result.to_json()))
        return Judged(number, case, trial.result)

    def _key(self, subject: OpSubject, number: int, case: Case) -> str:
        full = checks_for(number) is FULL_CHECKS
        keys = [subject.op_key, subject.reference_key, subject.judge_key]
        return digest_json(["fuzz", VERSION, *keys, full, case.identity()])

    def _write(self, *records: tuple[str, Json], force: bool = False) -> None:
        """Keep verdicts, some at a time: one transaction costs more than judging a tiny case."""
        with self._lock:
            self._unwritten += records
            if len(self._unwritten) >= WRITE_BATCH or (force and self._unwritten):
                self._cache.actions.put_many(self._unwritten)
                self._unwritten = []
