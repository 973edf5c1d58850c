"""Fuzz an op: judge many cases as fast as its programs run, and cache every verdict."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice, takewhile

from msgspec import Struct, structs

from gpuemu_flow.build.signals import WAKE_SECONDS
from gpuemu_flow.build.states import revealed
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cases.op_schema import OpSchema, with_shapes
from gpuemu_flow.fuzz.case_queue import (
    BatchReply,
    CaseBatch,
    Cluster,
    Farm,
    QueuedCase,
    ThreadFarm,
    WarmPrograms,
    case_key,
    keep,
    known_verdicts,
    reference_inputs,
)
from gpuemu_flow.fuzz.outcome import MOST_FAILURES, Judged, OpFuzzOutcome
from gpuemu_flow.fuzz.subjects import OpSubject, dtypes_of, op_subject
from gpuemu_flow.judge.known import KnownResults
from gpuemu_flow.judge.verdicts import run_error_result
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.plain_text import printable
from gpuemu_flow.model.types import BAD, Case, CheckResult, FailureKind, Shape
from gpuemu_flow.store.keys import Discovered, Lookup
from gpuemu_flow.workers import limits
from gpuemu_flow.workers.api import MOST_TIMEOUTS, RunError
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
    enough: int | None = None  # failures after which a run ends
    time_limit: float | None = None
    start_up: float = 0.0  # seconds before the first verdict that the time limit does not count
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
        on_failure: Callable[[OpSubject, Judged], None] = lambda *_: None,
        cancel: threading.Event | None = None,
        cluster: Cluster | None = None,
        pool: Pool | None = None,
    ) -> None:
        self._workspace = workspace
        self._pool = pool
        self._cache = workspace.cache
        self._op = op
        self._options = options
        self._on_case = on_case
        self._on_failure = on_failure
        self._end = math.inf
        self._cancel = cancel or threading.Event()
        self._cluster = cluster
        self.subjects = [
            op_subject(workspace, op, dtype, learned=cluster is None)
            for dtype in dtypes_of(workspace, op, options.dtypes)
        ]
        about = [(self._cache, subject, workspace.inputs) for subject in self.subjects]
        self._references = [reference_inputs(*each, force=options.force) for each in about]
        self._verdicts = [known_verdicts(*each, force=options.force) for each in about]
        self._ordered: list[Discovered | None] = [None for _ in self.subjects]
        self._seed = self.subjects[0].seed if options.seed is None else options.seed

    def is_outdated(self) -> bool:
        """Tell whether the op could read a file that the reference was seen to use.

        If so, the verdicts do not count: the use of the file was unknown when this object was made,
        and so the file was not hidden from the op.
        """
        for subject, inputs in zip(self.subjects, self._references, strict=True):
            if subject.known is not None:
                used = revealed(inputs.used, subject.known, self._workspace.root)
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
        limit = math.inf if self._options.time_limit is None else self._options.time_limit
        spent = any(
            subject.subject.op.timeout >= limit for subject in self.subjects
        )  # by one timeout
        most = 1 if spent else MOST_TIMEOUTS
        outcome = OpFuzzOutcome(
            self._op, self._seed, self._options.most_failures, most, self._options.enough
        )
        cases = self._cases()
        with self._open_farm() as farm:
            try:
                self._judge(farm, cases, outcome)
            finally:
                for known in self._verdicts:
                    known.flush()
        outcome.interrupted = self._cancel.is_set()
        outcome.duration_s = time.perf_counter() - begin
        return outcome

    @contextmanager
    def _open_farm(self) -> Iterator[Farm]:
        alone = self._options.fail_fast
        if self._cluster is not None:
            with self._cluster.open_farm(
                self._workspace, self._op, self.subjects, alone=alone
            ) as farm:
                yield farm
            return
        limits.tune()  # the tensors of fully checked cases come and go
        threads = max(1, self._options.jobs)
        inputs = [
            (known.inputs, reference)
            for known, reference in zip(self._verdicts, self._references, strict=True)
        ]
        programs = WarmPrograms(
            self._cache, self.subjects, inputs, threads=threads, alone=alone, pool=self._pool
        )
        with closing(ThreadFarm(programs, threads)) as here:
            yield here

    def _judge(self, farm: Farm, cases: Iterator[NumberedCase], outcome: OpFuzzOutcome) -> None:
        """Let a farm judge the cases, and handle the verdicts in the order of the cases."""
        lookup, fail_fast = self._workspace.inputs, self._options.fail_fast
        loop = _CaseLoop(farm, cases, self._verdicts, lookup, self._cancel, alone=fail_fast)
        for which, judged in loop.judged():
            self._refuse_unordered(which)
            if not outcome.cases and self._options.time_limit is not None:
                self._end = min(self._end, time.monotonic() + self._options.time_limit)
            if not judged.cached and outcome.wants(judged):
                self._on_failure(self.subjects[which], judged)
            outcome.add(judged)
            self._on_case(judged)
            if outcome.gave_up or (fail_fast and judged.result.verdict in BAD):
                break

    def _cases(self) -> Iterator[NumberedCase]:
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
        limit = options.time_limit
        self._end = math.inf if limit is None else time.monotonic() + options.start_up + limit
        return numbered_cases(streams, options.iterations, lambda: time.monotonic() < self._end)

    def _refuse_unordered(self, which: int) -> None:
        """Raise an error if a program used the output of a rule that it does not wait for.

        The error is RunnerError ``needs-missing``. `which` is the index in `subjects` of the
        subject to check.
        """
        used = self._verdicts[which].inputs.used
        if used is not self._ordered[which]:  # which is rare
            self.subjects[which].others.refuse(used)
            self._ordered[which] = used


# The cases of a fuzz run, which depend on the seed but not on the number of threads.


NumberedCase = tuple[int, int, Case]
"""The number of a case, the index of its stream, and the case."""


def numbered_cases(
    streams: Sequence[Iterator[Case]], iterations: int | None, in_time: Callable[[], bool]
) -> Iterator[NumberedCase]:
    """Take cases from the streams in rotation, until there are enough or the time is over."""
    numbered = ((n, which, case) for n, (which, case) in enumerate(_in_turns(streams)))
    until = takewhile(lambda _: in_time(), numbered)
    return until if iterations is None else islice(until, iterations)


def _in_turns(streams: Sequence[Iterator[Case]]) -> Iterator[tuple[int, Case]]:
    while True:
        for which, stream in enumerate(streams):
            yield which, next(stream)


def case_stream(
    subject: OpSubject,
    *,
    seed: int,
    shapes: Sequence[Shape] = (),
    strategies: Sequence[str] = (),
    layouts: Sequence[str] = (),
) -> Iterator[Case]:
    """Yield cases of one op and dtype without end; if several shapes are given, use them in turn.

    Raises UsageError: ``bad-shape``, ``unknown-strategy``, ``unknown-layout``: raised immediately,
    not at the first case.
    """
    schemas: list[OpSchema] = [subject.schema]
    if shapes:
        try:
            schemas = with_shapes(subject.schema, shapes)
        except ValueError as error:
            raise UsageError(Problem("bad-shape", str(error))) from None

    def stream(schema: OpSchema) -> Iterator[Case]:
        about = structs.replace(subject, schema=schema)
        next(about.cases(seed=seed, strategies=strategies, layouts=layouts))  # or its error
        return about.cases(seed=seed, strategies=strategies, layouts=layouts)

    return _indexed([stream(schema) for schema in schemas])


def _indexed(streams: Sequence[Iterator[Case]]) -> Iterator[Case]:
    """Yield cases from the streams in rotation, numbered consecutively."""
    for index, (_, case) in enumerate(_in_turns(streams)):
        yield case if case.index == index else structs.replace(case, index=index)


# Judge cases in batches, in threads here or on other machines.


TARGET_SECONDS = 0.5
"""Target duration of a batch: much longer than sending it, but short enough to repeat it if a
worker is lost, and to end soon."""
MOST_BATCH = 256
AHEAD = 4
"""Number of cases that may be finished while an earlier case is not, in multiples of the cases
under way."""
_NAMED = 3

Told = tuple[int, Judged]
"""The index of a case's subject, and the case with its verdict."""


class _CaseLoop:
    """Draws cases, looks their verdicts up, and sends the rest to a farm."""

    def __init__(
        self,
        farm: Farm,
        cases: Iterator[NumberedCase],
        verdicts: Sequence[KnownResults[CheckResult]],
        lookup: Lookup,
        cancel: threading.Event,
        *,
        alone: bool,
    ) -> None:
        self._farm = farm
        self._cases = cases
        self._verdicts = verdicts
        self._lookup = lookup
        self._cancel = cancel
        self._most = 1 if alone else MOST_BATCH
        self._sizes = [min(self._most, farm.first_batch) for _ in verdicts]
        self._verified: list[set[str]] = [set() for _ in verdicts]
        self._waiting: list[list[QueuedCase]] = [[] for _ in verdicts]
        self._ready: dict[int, Told] = {}
        self._drawn = self._told = 0
        self._ended = False

    def judged(self) -> Iterator[Told]:
        """Yield the results of the cases, in the order of the cases."""
        while not self._cancel.is_set():
            self._fill()
            yield from self._in_order()
            if self._farm.outstanding:
                for batch, reply in self._farm.replies(WAKE_SECONDS):
                    self._take(batch, reply)
                yield from self._in_order()
            elif self._ended and not any(self._waiting):
                return
        for number in sorted(self._ready):  # these count even if earlier cases were not judged
            yield self._ready.pop(number)

    def _in_order(self) -> Iterator[Told]:
        while self._told in self._ready:
            told = self._ready.pop(self._told)
            self._told += 1
            yield told

    @property
    def _is_far_ahead(self) -> bool:
        window = AHEAD * (self._farm.capacity + 1) * max(self._sizes)
        return self._drawn - self._told >= window

    def _fill(self) -> None:
        """Send batches until all workers are busy, or too many results wait for an earlier case."""
        farm = self._farm
        while farm.outstanding < farm.capacity and not self._is_far_ahead and not self._ended:
            item = next(self._cases, None)
            if item is None:
                self._ended = True
                break
            number, which, case = item
            self._drawn = number + 1
            key = case_key(number, case)
            known = self._verdicts[which].find(key)
            if known is not None:
                self._ready[number] = (which, Judged(number, case, known, cached=True))
                continue
            self._waiting[which].append(QueuedCase(number, case, key))
            if len(self._waiting[which]) >= self._sizes[which]:
                self._send(which)
        if self._ended or self._is_far_ahead:
            for which, waiting in enumerate(self._waiting):
                if waiting and farm.outstanding < max(1, farm.capacity):
                    self._send(which)

    def _send(self, which: int) -> None:
        waiting, self._waiting[which] = self._waiting[which], []
        self._farm.submit(CaseBatch(which, tuple(waiting)), sorted(self._verified[which]))

    def _take(self, batch: CaseBatch, reply: BatchReply | None) -> None:
        """Keep the verdicts of one reply, and adapt the size of batches to its duration."""
        which = batch.which
        if reply is None:
            (queued,) = batch.cases
            self._record(which, queued, queued.case, _killer())
            return
        is_valid = self._agrees(which, reply)
        for queued, verdict in zip(batch.cases, reply.verdicts, strict=True):
            if is_valid:
                keep(self._verdicts[which], queued.key, verdict.result)
            self._record(which, queued, verdict.made or queued.case, verdict.result)
        per_case = max(reply.seconds / len(batch.cases), 1e-9)
        fitting = min(self._most, 2 * self._sizes[which], TARGET_SECONDS / per_case)
        self._sizes[which] = max(1, int(fitting))

    def _record(self, which: int, queued: QueuedCase, case: Case, result: CheckResult) -> None:
        self._ready[queued.number] = (which, Judged(queued.number, case, result))

    def _agrees(self, which: int, reply: BatchReply) -> bool:
        """Tell whether a worker's verdicts may be cached.

        They may be cached if no file was written to while the worker judged.

        Raises UsageError: ``cluster-worker-differs``: the worker's inputs differ from those of this
        machine.
        """
        if not reply.worker or reply.key in self._verified[which]:
            return True
        inputs = self._verdicts[which].inputs
        inputs.join(reply.names)
        own = self._lookup.parts(reply.names)
        if own != reply.parts or (reply.key and reply.key != inputs.key_of(reply.names)):
            names = sorted({*own, *reply.parts})
            raise differs(reply.worker, [n for n in names if own.get(n) != reply.parts.get(n)])
        if reply.key:
            self._verified[which].add(reply.key)
        return bool(reply.key)


def differs(worker: str, what: list[str]) -> UsageError:
    """Return the error for a worker whose inputs or environment differ from this machine's.

    `what` holds the names of the things that differ; the error's text contains the first few.
    """
    named = ", ".join(printable(name) for name in what[:_NAMED])
    more = f" and {len(what) - _NAMED} more" if len(what) > _NAMED else ""
    text = f"the worker {printable(worker)} differs from this machine in {named}{more}"
    hint = (
        "give all workers the same files at the same paths, packages and kind of processor, "
        "and edit nothing while they work"
    )
    return UsageError(Problem("cluster-worker-differs", text, hint))


def _killer() -> CheckResult:
    message = "each worker of the cluster that was given this case alone died"
    hint = "a worker's log says why; often it is short of memory"
    error = RunError("cluster-worker-died", message, hint)
    return run_error_result(FailureKind.EXECUTION, error)
