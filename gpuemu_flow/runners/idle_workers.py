"""Keep idle workers of a program for its next run of cases, or for a judge."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpuemu_flow.runners.api import Program
from gpuemu_flow.runners.attempt import WorkerClient


class WorkerSlot:
    """Holds a worker in which nothing has gone wrong. A context manager; not thread-safe.

    Starting a worker and loading a program costs more than running most cases.
    """

    def __init__(self) -> None:
        self._client: WorkerClient | None = None

    def __enter__(self) -> WorkerSlot:
        return self

    def __exit__(self, *_: object) -> None:
        client = self.take()
        if client is not None:
            client.close()

    def take(self) -> WorkerClient | None:
        """Return the worker; None if there is none. The caller has to close it or give it back."""
        client, self._client = self._client, None
        return client

    def give(self, client: WorkerClient | None) -> None:
        """Keep a worker until it is taken."""
        self.__exit__()
        if client is not None:
            client.worker.follow_no_more()
        self._client = client


class IdleWorkers:
    """Idle workers that have loaded a reference, for a judge that will evaluate that reference.

    Thread-safe. A worker is not handed out if a file that it may have read has changed.

    Parameters
    ----------
    most : int
        Maximum number of workers; if a new one would exceed it, the oldest worker is ended.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._idle: list[tuple[WorkerClient, Callable[[], bool]]] = []

    def put(self, client: WorkerClient, unchanged: Callable[[], bool]) -> None:
        """Keep an idle worker.

        Parameters
        ----------
        client : WorkerClient
        unchanged : callable
            Tells whether the files and other inputs that the program was seen to use are still what
            they were before the worker loaded the program.
        """
        client.worker.follow_no_more()
        with self._lock:
            self._idle.append((client, unchanged))
            over = len(self._idle) - self._most
            dropped, self._idle = self._idle[: max(0, over)], self._idle[max(0, over) :]
        for old, _ in dropped:
            old.close()

    def take(self, program: Program) -> WorkerClient | None:
        """Return a worker that has loaded this program; None if there is none.

        Of several such workers, only the one that was kept first is considered. If the worker may
        have read a file that has changed, the worker is ended, and the result is None. The caller
        has to close the returned worker.
        """
        with self._lock:
            place = next((n for n, (c, _) in enumerate(self._idle) if c.program == program), None)
            if place is None:
                return None
            client, unchanged = self._idle.pop(place)
        if unchanged():
            return client
        client.close()
        return None

    def close(self) -> None:
        """End all idle workers, and keep none from now on."""
        with self._lock:
            self._most = 0
            idle, self._idle = self._idle, []
        for client, _ in idle:
            client.close()
