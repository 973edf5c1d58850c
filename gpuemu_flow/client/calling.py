"""Make a client's calls, with their time limits, progress and cancellation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from gpuemu_flow.client import calls
from gpuemu_flow.client.calls import Call, nbytes
from gpuemu_flow.client.connection import Connection
from gpuemu_flow.client.errors import ClientError, RequestTimeoutError

T = TypeVar("T")

OnProgress = Callable[[int, int], None]

TIMEOUT_MS = 30_000
BYTES_PER_MS = 1000
"""Bytes of tensors for which the time limit grows by 1 ms: to judge large tensors takes long."""
LONG_TIMEOUT_MS = 3_600_000
"""Default time limit in ms of calls that run programs many times."""
PROGRESS_SECONDS = 0.5
_WITH_TENSORS = ("inputs", "output", "outputs", "cases")
"""Fields of requests that may hold tensors."""


class Calling:
    """Makes calls on a connection, with a time limit.

    Attributes
    ----------
    timeout_ms : int or None
        Time limit of a call in milliseconds; None for a limit that depends on the call.
    """

    _connection: Connection
    timeout_ms: int | None

    def _do(self, call: Call[T]) -> T:
        tensors = [call.request[name] for name in _WITH_TENSORS if name in call.request]
        patience = TIMEOUT_MS + nbytes(tensors) // BYTES_PER_MS
        return self._connection.exchange_messages(call, self.timeout_ms or patience)

    def _do_long(self, call: Call[T], on_progress: OnProgress | None = None) -> T:
        """Make a call that may take long.

        If it is interrupted (KeyboardInterrupt) or exceeds the time limit, it is cancelled in the
        daemon.
        """
        request_id = str(call.request["request_id"])
        try:
            with self._watched(request_id, on_progress):
                return self._connection.exchange_messages(call, self.timeout_ms or LONG_TIMEOUT_MS)
        except (KeyboardInterrupt, RequestTimeoutError):
            with suppress(ClientError):
                self.give_up(request_id)
            raise

    def give_up(self, request_id: str) -> None:
        """Cancel the request with this id in the daemon."""
        self._ask_about(calls.cancel(request_id))

    def _ask_about(self, call: Call[T]) -> T:
        """Make a call that concerns another call in progress; never start a daemon for it."""
        return self._connection.exchange_messages(call, self.timeout_ms or TIMEOUT_MS, start=False)

    @contextmanager
    def _watched(self, request_id: str, on_progress: OnProgress | None) -> Iterator[None]:
        if on_progress is None:
            yield
            return
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(PROGRESS_SECONDS):
                with suppress(ClientError):
                    on_progress(*self._ask_about(calls.progress(request_id)))

        thread = threading.Thread(target=watch, name="gpuemu-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
