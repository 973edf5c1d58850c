"""Track requests in progress and the clients that wait for them, and provide worker threads."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

Context = Any  # pynng.Context, which has no types

MAX_WAITERS = 64
"""Largest number of waiting copies of a request. After 60 s, the transport sends a new copy every
second."""
REMEMBERED_LEAVERS = 4096
"""Number of ended connections to remember, since a request may be read after its connection
ended."""


class CancelledJobError(Exception):
    """Raised while a request is processed, if no client waits for its answer any more."""


class Job:
    """A request in progress. Equal requests that arrive meanwhile wait for the same answer."""

    def __init__(self, data: bytes, pipe: int, context: Context, request_id: str = "") -> None:
        self.request_id = request_id
        self.begun = time.monotonic()
        self.progress = (0, 0)
        self.data = data
        self.pipe = pipe
        self.cancelled = threading.Event()
        self.key = (pipe, hashlib.sha256(data).digest())
        self.waiters: list[Context] = [context]
        self._linked: list[threading.Event] = []
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """Set `cancelled` and the events that are linked to it."""
        with self._lock:
            self.cancelled.set()
            linked = list(self._linked)
        for event in linked:
            event.set()

    @contextmanager
    def linked(self, event: threading.Event) -> Iterator[None]:
        """Inside the context, set `event` as soon as this job is cancelled."""
        with self._lock:
            self._linked.append(event)
            if self.cancelled.is_set():
                event.set()
        try:
            yield
        finally:
            with self._lock:
                self._linked.remove(event)

    def check(self) -> None:
        """Raise CancelledJobError if this job has been cancelled."""
        if self.cancelled.is_set():
            raise CancelledJobError


class JobTable:
    """All jobs in progress, by connection and content. Thread-safe."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[int, bytes], Job] = {}
        self._lock = threading.Lock()
        self._gone: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> tuple[bool, Context | None]:
        """Register a job, or let its client wait for an equal job in progress.

        One request can arrive several times: a client's transport sends it again if no answer
        arrives, and the client does so after a time-out. All copies wait for the same result.
        """
        with self._lock:
            known = self._jobs.get(job.key)
            if known is None or known.cancelled.is_set():
                self._jobs[job.key] = job
                if job.pipe in self._gone:
                    job.cancel()
                return True, None
            known.waiters += job.waiters
            return False, known.waiters.pop(0) if len(known.waiters) > MAX_WAITERS else None

    def finish(self, job: Job) -> list[Context]:
        """Remove a job, and return the contexts that wait for its answer."""
        with self._lock:
            if self._jobs.get(job.key) is job:
                del self._jobs[job.key]
            return job.waiters

    def named(self, request_id: str) -> Job | None:
        """Return the job with this request id, which a client chose; None if there is none."""
        with self._lock:
            return next((j for j in self._jobs.values() if j.request_id == request_id), None)

    def has_of(self, pipe: int) -> bool:
        """Tell whether a request from a connection is in progress."""
        with self._lock:
            return any(job.pipe == pipe for job in self._jobs.values())

    def connected(self, pipe: int) -> None:
        """Record a new connection, so that `add` does not cancel its requests.

        The method `add` cancels requests from connections that have ended. The new connection may
        have the same number, `pipe`, as one of them.
        """
        with self._lock:
            self._gone.pop(pipe, None)

    def disconnected(self, pipe: int) -> None:
        """Cancel the requests of a connection that has ended."""
        with self._lock:
            self._gone[pipe] = None
            if len(self._gone) > REMEMBERED_LEAVERS:
                self._gone.popitem(last=False)
            orphans = [job for job in self._jobs.values() if job.pipe == pipe]
        for job in orphans:
            job.cancel()

    def expire(self, seconds: float) -> None:
        """Cancel jobs that began more than `seconds` ago, since no client waits that long."""
        limit = time.monotonic() - seconds
        with self._lock:
            late = [job for job in self._jobs.values() if job.begun < limit]
        for job in late:
            job.cancel()

    def cancel_all(self) -> None:
        """Cancel all jobs, because the daemon ends."""
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel()


class WorkerPool:
    """Threads for one kind of request, so that slow kinds never delay quick ones."""

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._limit = threads
        self._threads: list[threading.Thread] = []
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._busy = 0
        self._closed = False

    def submit(self, work: Callable[[], None]) -> None:
        """Queue `work`, which must not raise, for one of the threads."""
        with self._lock:
            self._busy += 1
            if self._busy > len(self._threads) < self._limit:
                thread = threading.Thread(
                    target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
        self._work.put(work)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            finally:
                with self._lock:
                    self._busy -= 1

    def close(self, seconds: float) -> None:
        """Stop the threads, waiting up to `seconds` for their present work."""
        self._closed = True
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            with suppress(RuntimeError):
                thread.join(seconds)
