"""Answer together the requests for one op that arrive while earlier ones are being answered.

Most work for a small request is then done once for a group: checking the inputs of the reference, a
message to its worker, a transaction. No request waits for later requests to arrive.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from gpuemu_flow.daemon.jobs import WorkerPool

T = TypeVar("T")

MOST_TOGETHER = 64
QUICK_SECONDS = 0.002
"""Time per case below which the requests for a reference are grouped.

A slower reference runs in as many workers as there are requests.
"""
_SLOWER = 1.25
PATIENCE_SECONDS = 0.5
"""Largest time that requests wait for the preceding group, in which a case may hang."""


class Gatherer(Generic[T]):
    """Answers requests in groups. Groups of the same name run one after the other. Thread-safe.

    Parameters
    ----------
    pool : WorkerPool
    answer : callable
        Answers one group.
    """

    def __init__(self, pool: WorkerPool, answer: Callable[[Sequence[T]], None]) -> None:
        self._pool = pool
        self._answer = answer
        self._waiting: dict[str, deque[T]] = {}  # a key for each name with a running group
        self._begun: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, name: str, request: T) -> bool:
        """Queue a request, to be answered together with waiting requests of the same name.

        Returns
        -------
        bool
            False if the request was not queued, because the present group of this name takes too
            long.
        """
        with self._lock:
            is_first = name not in self._waiting
            if self._is_late(name):
                return False
            self._waiting.setdefault(name, deque()).append(request)
        if is_first:
            self._pool.submit(lambda: self._answer_all(name))
        return True

    def take_late(self) -> list[T]:
        """Remove and return the requests that wait behind groups that take too long."""
        with self._lock:
            late = [waiting for name, waiting in self._waiting.items() if self._is_late(name)]
            found = [request for waiting in late for request in waiting]
            for waiting in late:
                waiting.clear()
        return found

    def _is_late(self, name: str) -> bool:
        begun = self._begun.get(name)
        return begun is not None and time.monotonic() - begun > PATIENCE_SECONDS

    def _answer_all(self, name: str) -> None:
        """Answer groups until no request is left, or until other work needs this thread."""
        while group := self._next(name):
            try:
                self._answer(group)
            except BaseException:  # the next ones must not wait for ever
                self._pool.submit(lambda: self._answer_all(name))
                raise
            if self._pool.has_waiting:
                self._pool.submit(lambda: self._answer_all(name))
                return

    def _next(self, name: str) -> list[T]:
        """Remove and return the next group; empty if no request of this name waits."""
        with self._lock:
            waiting = self._waiting[name]
            if waiting:
                self._begun[name] = time.monotonic()
            else:
                del self._waiting[name]
                self._begun.pop(name, None)
            return [waiting.popleft() for _ in range(min(len(waiting), MOST_TOGETHER))]


class Pace:
    """The time in seconds that a reference takes for a case, by op. Thread-safe."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def note(self, op: str, seconds: float) -> None:
        """Record the time of an op's latest case, but at most 1.25 times the last recorded time.

        Because of this limit, a single slow case hardly changes the record.
        """
        self._seconds[op] = min(seconds, _SLOWER * self._seconds.get(op, seconds))

    def is_quick(self, op: str) -> bool:
        """Tell whether an op's cases are quick enough for its requests to be grouped."""
        return self._seconds.get(op, QUICK_SECONDS) < QUICK_SECONDS
