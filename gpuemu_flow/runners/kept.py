"""Idle workers, passed on from a run of a program's cases to its next run, or to a judge."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpuemu_flow.runners.api import Program
from gpuemu_flow.runners.attempt import WorkerClient


class KeptWorker:
    """Holds a worker in which nothing has gone wrong. A context manager; not thread-safe.

    To start a worker and to load a program in it costs more than most cases do.
    """

    def __init__(self) -> None:
        self._client: WorkerClient | None = None

    def __enter__(self) -> KeptWorker:
        return self

    def __exit__(self, *_: object) -> None:
        client = self.take()
        if client is not None:
            client.close()

    def take(self) -> WorkerClient | None:
        """Return the worker, whose new owner closes it or gives it back; None if there is none."""
        client, self._client = self._client, None
        return client

    def give(self, client: WorkerClient | None) -> None:
        """Keep a worker until it is taken."""
        self.__exit__()
        if client is not None:
            client.worker.follow_no_more()
        self._client = client


class IdleWorkers:
    """The workers that ran a reference's cases last, for the judge that needs it again.

    Thread-safe. No worker is handed out if a file has changed that it may have read before.

    Parameters
    ----------
    most : int
        Maximum number of workers; when it is reached, the oldest is ended for a new one.
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
            Tells whether all that the program was seen to use is as it was before the worker
            loaded it.
        """
        client.worker.follow_no_more()
        with self._lock:
            self._idle.append((client, unchanged))
            over = len(self._idle) - self._most
            dropped, self._idle = self._idle[: max(0, over)], self._idle[max(0, over) :]
        for old, _ in dropped:
            old.close()

    def take(self, program: Program) -> WorkerClient | None:
        """Return a worker that has loaded a program as it is now; its new owner closes it."""
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
