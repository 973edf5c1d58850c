"""One idle worker, passed on from a run of a program's cases to its next run."""

from __future__ import annotations

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
