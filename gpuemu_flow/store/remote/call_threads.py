"""A few threads that talk to a shared cache. Callers can stop waiting for them at any time.

The threads of `concurrent.futures` are unsuitable, because a process cannot end before all of them
have ended. A stalled server would then delay the end of a run that the user cancelled.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
_GLANCE_SECONDS = 0.1


class QueuedCall(Generic[T]):
    """A call to be made by one of the threads, and its result."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._done = threading.Event()
        self._value: T | None = None
        self._error: Exception | None = None

    def run(self) -> None:
        """Make the call; keep its result or its error."""
        try:
            self._value = self._call()
        except Exception as error:
            self._error = error
        finally:
            self._done.set()

    def wait(self, cancel: threading.Event) -> bool:
        """Wait until the call is done or cancelled; return True if it is done."""
        while not self._done.wait(_GLANCE_SECONDS):
            if cancel.is_set():
                return False
        return True

    def result(self) -> T | None:
        """Return the result of a finished call, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._value


class CallThreads:
    """Makes at most `width` calls at a time, in the order of submission."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._queue: queue.SimpleQueue[QueuedCall[object] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._pending = 0
        self._lock = threading.Lock()

    def submit(self, call: Callable[[], T]) -> QueuedCall[T]:
        """Have a call made as soon as a thread is free."""
        job = QueuedCall(call)
        with self._lock:
            self._pending += 1
            if self._pending > len(self._threads) and len(self._threads) < self._width:
                thread = threading.Thread(target=self._work, name="shared-cache", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._queue.put(job)  # type: ignore[arg-type]
        return job

    def all(self, calls: Sequence[Callable[[], T]], cancel: threading.Event) -> list[T | None]:
        """Make calls in parallel, and return their results; None for failed or cancelled calls."""
        jobs = [self.submit(call) for call in calls]
        found: list[T | None] = []
        for job in jobs:
            value = None
            if job.wait(cancel):
                with contextlib.suppress(Exception):
                    value = job.result()
            found.append(value)
        return found

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            job.run()
            with self._lock:
                self._pending -= 1

    def close(self) -> None:
        """Let the threads end after the calls submitted so far, without waiting for them."""
        for _ in self._threads:
            self._queue.put(None)
