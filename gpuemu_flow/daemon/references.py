"""Keep programs loaded between requests, and limit how many run at once."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import field
from itertools import count

from gpuemu_flow.daemon.jobs import CancelledJobError, Job
from gpuemu_flow.fuzz.wire_ops import WireSubject
from gpuemu_flow.judging.case_evaluator import SESSIONS_PER_EVALUATOR, CaseEvaluator
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.runners.pool import Pool

IDLE_SECONDS = 600.0
_SLICE = 0.1


@dataclass
class _Warm:
    """The loaded programs of one subject, kept for further requests.

    They are discarded after a failed or cancelled request, and when they have been idle for long.
    """

    key: str
    evaluator: CaseEvaluator
    stack: ExitStack
    cancel: threading.Event
    used: float = field(default_factory=time.monotonic)

    def close(self) -> None:
        self.stack.close()


class References:
    """Hands out sessions, each to one request at a time. Thread-safe."""

    def __init__(self, pool: Pool, limit: int) -> None:
        self._pool = pool
        self._limit = limit
        self._idle: OrderedDict[int, _Warm] = OrderedDict()
        self._numbers = count()
        self._at_work = 0
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()
        self._closed = False

    @staticmethod
    def sessions_for(limit: int) -> int:
        """Return the number of sessions that the pool must have room for.

        They suffice for `limit` subjects (ops with their programs) in use, and as many idle ones.
        """
        return 2 * limit * SESSIONS_PER_EVALUATOR

    @contextmanager
    def checkout(self, subject: WireSubject, job: Job) -> Iterator[CaseEvaluator]:
        """Yield the loaded programs of a subject, or raise CancelledJobError."""
        warm = self._take(subject, job)
        healthy = False
        try:
            with job.linked(warm.cancel):
                yield warm.evaluator
            subject.learn(warm.evaluator.observed())
            healthy = not warm.cancel.is_set()
        finally:
            self._give_back(warm, healthy)

    def _take(self, subject: WireSubject, job: Job) -> _Warm:
        with self._changed:
            self._wait_in_line(job)
            self._at_work += 1
            number = next(
                (n for n, warm in reversed(self._idle.items()) if warm.key == subject.key), None
            )
            if number is not None:
                return self._idle.pop(number)
        cancel = threading.Event()
        try:
            stack = ExitStack()
            return _Warm(
                subject.key,
                CaseEvaluator(self._pool, subject.subject, stack, cancel),
                stack,
                cancel,
            )
        except BaseException:
            with self._changed:
                self._at_work -= 1
                self._changed.notify_all()
            raise

    def _wait_in_line(self, job: Job) -> None:
        """Wait for a free slot, in order of arrival, so that no fuzz run blocks others for long."""
        place = object()
        self._queue.append(place)
        try:
            while self._at_work >= self._limit or self._queue[0] is not place:
                job.check()
                if self._closed:
                    raise CancelledJobError
                self._changed.wait(_SLICE)
            job.check()
            if self._closed:
                raise CancelledJobError
        finally:
            self._queue.remove(place)
            self._changed.notify_all()

    def _give_back(self, warm: _Warm, healthy: bool) -> None:
        spare = [] if healthy else [warm]
        now = warm.used = time.monotonic()
        with self._changed:
            self._at_work -= 1
            if healthy and not self._closed:
                self._idle[next(self._numbers)] = warm
            elif healthy:
                spare.append(warm)
            while self._idle:
                number, oldest = next(iter(self._idle.items()))
                if len(self._idle) <= self._limit and now - oldest.used < IDLE_SECONDS:
                    break
                del self._idle[number]
                spare.append(oldest)
            self._changed.notify_all()
        for unused in spare:
            unused.close()

    def close(self) -> None:
        """End all idle programs; programs in use end when they are returned."""
        with self._changed:
            self._closed = True
            idle = list(self._idle.values())
            self._idle.clear()
            self._changed.notify_all()
        for warm in idle:
            warm.close()
