"""Answer requests together that came while earlier requests of their kind were answered.

Most work for a small request is then done once for several: checking the inputs of the reference,
a message to its worker, a transaction. No request waits for others to come.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from gpuemu_flow.daemon.jobs import WorkerPool

T = TypeVar("T")

MOST_TOGETHER = 64
QUICK_SECONDS = 0.002
"""A reference that takes longer per case runs in as many workers as there are requests."""
_SLOWER = 1.25


class Gatherer(Generic[T]):
    """Has requests answered in groups; groups of one name follow each other. Thread-safe.

    Parameters
    ----------
    pool : WorkerPool
    answer : callable
        Answers one group.
    """

    def __init__(self, pool: WorkerPool, answer: Callable[[Sequence[T]], None]) -> None:
        self._pool = pool
        self._answer = answer
        self._waiting: dict[str, deque[T]] = {}  # of each name that a group is answered of
        self._lock = threading.Lock()

    def add(self, name: str, request: T) -> None:
        """Have a request answered, together with waiting requests of the same group name."""
        with self._lock:
            is_first = name not in self._waiting
            self._waiting.setdefault(name, deque()).append(request)
        if is_first:
            self._pool.submit(lambda: self._answer_all(name))

    def _answer_all(self, name: str) -> None:
        """Answer groups until no request waits, or until other work waits for this thread."""
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
        """Take the next group; forget the name if there is none."""
        with self._lock:
            waiting = self._waiting[name]
            if not waiting:
                del self._waiting[name]
            return [waiting.popleft() for _ in range(min(len(waiting), MOST_TOGETHER))]


class Pace:
    """Seconds that references took for a case, by op. Thread-safe."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def note(self, op: str, seconds: float) -> None:
        """Record the seconds of the latest case; limit the influence of a single slow case."""
        self._seconds[op] = min(seconds, _SLOWER * self._seconds.get(op, seconds))

    def is_quick(self, op: str) -> bool:
        """Tell whether cases of an op are so quick that its requests may wait for each other."""
        return self._seconds.get(op, QUICK_SECONDS) < QUICK_SECONDS
