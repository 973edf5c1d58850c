"""Run a fuzz run's cases on other machines, and collect the verdicts in the order of the cases."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from msgspec import Struct, field
from numpy.typing import NDArray

from gpuemu_flow.build.signals import WAKE_SECONDS
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.case_queue import QueuedCase, case_key, keep
from gpuemu_flow.fuzz.case_source import CaseSource
from gpuemu_flow.fuzz.outcome import Judged
from gpuemu_flow.fuzz.subjects import OpSubject
from gpuemu_flow.judge.case_evaluator import EvaluatedCase
from gpuemu_flow.judge.known import KnownResults
from gpuemu_flow.judge.verdicts import input_error, run_error_result
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.plain_text import printable
from gpuemu_flow.model.types import BAD, Case, CheckResult, FailureKind
from gpuemu_flow.store.discovered import Discovered, Lookup
from gpuemu_flow.workers.api import RunError

TARGET_SECONDS = 0.5
"""Target duration of a batch: much longer than sending it, but short enough to repeat it if a
worker is lost."""
FIRST_BATCH, MOST_BATCH = 8, 256
AHEAD = 4
"""Number of cases that may be finished while an earlier case is not, in multiples of the cases
under way."""
_NAMED = 3

Told = tuple[int, Judged, EvaluatedCase | None]


class RemoteRun:
    """Sends the cases of a source to a farm."""

    def __init__(
        self,
        farm: Farm,
        source: CaseSource,
        verdicts: Sequence[KnownResults[CheckResult]],
        lookup: Lookup,
        cancel: threading.Event,
    ) -> None:
        self._farm = farm
        self._source = source
        self._verdicts = verdicts
        self._lookup = lookup
        self._cancel = cancel
        self._sizes = [FIRST_BATCH] * len(verdicts)
        self._verified: list[set[str]] = [set() for _ in verdicts]
        self._waiting: list[list[QueuedCase]] = [[] for _ in verdicts]
        self._ready: dict[int, Told] = {}
        self._drawn = self._told = 0
        self._ended = False

    def judged(self) -> Iterator[Told]:
        """Yield the results of the cases, in the order of the cases.

        A result has three parts: the index of the case's subject, the verdict, and the judged case.
        The last is None if the verdict came from the cache, or if the case neither failed nor ended
        in an error.
        """
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
        farm, source = self._farm, self._source
        while farm.outstanding < farm.capacity and not self._is_far_ahead and not self._ended:
            item = source.next()
            if item is None:
                self._ended = True
                break
            number, which, case = item
            self._drawn = number + 1
            key = case_key(number, case)
            known = self._verdicts[which].find(key)
            if known is not None:
                self._ready[number] = (which, Judged(number, case, known, cached=True), None)
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
        fitting = min(MOST_BATCH, 2 * self._sizes[which], TARGET_SECONDS / per_case)
        self._sizes[which] = max(1, int(fitting))

    def _record(self, which: int, queued: QueuedCase, case: Case, result: CheckResult) -> None:
        evaluated = None
        if result.verdict in BAD:
            given: dict[str, NDArray[Any]] | None = None if input_error(case) is None else {}
            evaluated = EvaluatedCase(case, result, given=given)
        self._ready[queued.number] = (which, Judged(queued.number, case, result), evaluated)

    def _agrees(self, which: int, reply: BatchReply) -> bool:
        """Tell whether a worker's verdicts may be cached.

        They may be cached if no file was written to while the worker judged.

        Raises UsageError: ``cluster-worker-differs``: the worker's inputs differ from those of this
        machine.
        """
        if reply.key in self._verified[which]:
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


# Interface between a fuzz run and the machines that judge its cases, in batches.


class CaseBatch(Struct, frozen=True):
    """Cases of one op and dtype that a worker judges one after the other."""

    which: int
    cases: tuple[QueuedCase, ...]

    def halves(self) -> tuple[CaseBatch, CaseBatch] | None:
        """Divide the cases into two batches; return None if there is only one case."""
        middle = len(self.cases) // 2
        if not middle:
            return None
        return CaseBatch(self.which, self.cases[:middle]), CaseBatch(
            self.which, self.cases[middle:]
        )


class RemoteVerdict(Struct, frozen=True):
    """A worker's verdict on one case."""

    result: CheckResult
    made: Case | None = None


class BatchReply(Struct, frozen=True):
    """A worker's reply to a batch."""

    worker: str
    verdicts: tuple[RemoteVerdict, ...]
    key: str
    names: Discovered = field(default_factory=Discovered)
    parts: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class Farm(Protocol):
    """Workers that judge the cases of one op. Not thread-safe."""

    @property
    def capacity(self) -> int:
        """Return the number of batches that keep all workers busy."""

    @property
    def outstanding(self) -> int:
        """Return the number of batches without a reply."""

    def submit(self, batch: CaseBatch, known: Collection[str]) -> None:
        """Send a batch of cases."""

    def replies(self, timeout: float) -> list[tuple[CaseBatch, BatchReply | None]]:
        """Wait at most `timeout` seconds for replies, and return those that have arrived.

        A batch whose worker died is divided and sent again. The reply is None for a batch of one
        case that killed every worker that received it.

        Raises FlowError: ``cluster-lost``, ``cluster-no-workers``, ``cluster-worker-differs`` and
        other errors that end the run.
        """


class Cluster(Protocol):
    """Machines that judge cases."""

    def open_farm(
        self, workspace: Workspace, op: str, subjects: Sequence[OpSubject], *, alone: bool
    ) -> AbstractContextManager[Farm]:
        """Return a context in which workers judge the cases of one op."""
