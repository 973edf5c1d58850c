"""The transport library's socket; no other module of the client calls the library.

A child of a process that used the library must not call it, not even to free inherited objects: the
library would abort the child. The functions that free its objects therefore check first which
process the objects belong to.
"""

from __future__ import annotations

import atexit
import functools
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuemu_flow.client.errors import TransportError, TransportLost, TransportTimeout

_user = 0
"""The process that uses the library, 0 before any does."""
_inherited = False
"""The library was loaded before this process was forked, by whomever."""


def usable() -> bool:
    """Tell whether this process may call the library: it was not loaded before a fork."""
    return not _inherited and _user in (0, os.getpid())


def note_fork() -> None:
    """Record, in a process that was just forked, whether its parent had used the library."""
    global _inherited  # noqa: PLW0603 - it is the library's state, which is the process's
    _inherited = _inherited or _user != 0 or "pynng" in sys.modules


def _library() -> Any:
    """Import and return the library, and guard its functions that free objects."""
    global _user
    first, _user = not _user, os.getpid()
    import pynng  # noqa: PLC0415

    if first:
        import pynng.nng  # noqa: PLC0415

        for kind in (pynng.Socket, pynng.Context, pynng.Message):
            kind.__del__ = _in_its_process(kind.__del__)
        # At exit it would wait for the library's threads, which a fork leaves behind.
        atexit.unregister(pynng.nng._pynng_atexit)
        atexit.register(_in_its_process(pynng.nng._pynng_atexit))
    return pynng


def _in_its_process(work: Callable[..., Any]) -> Callable[..., Any]:
    """Guard a function of the library, so that it does nothing in a forked child."""

    @functools.wraps(work)
    def guarded(*args: Any) -> Any:
        return work(*args) if usable() else None

    return guarded


class LibrarySocket:
    """A connection to one daemon, shared by all exchanges. Thread-safe.

    Parameters
    ----------
    path : Path

    Raises
    ------
    OSError
        Nobody listens.
    """

    def __init__(self, path: Path) -> None:
        self._library = _library()
        self._path = path
        self._lock = threading.Lock()
        self._timeout_ms: int | None = None  # of the contexts to come
        # A request that takes long must not be sent again, and the daemon limits what it receives.
        self._socket = self._library.Req0(resend_time=-1, recv_max_size=0)
        try:
            self._socket.dial(f"ipc://{path}", block=True)
        except self._library.NNGException as error:
            self._socket.close()
            raise OSError(str(error)) from None

    def new_context(self, timeout_ms: int) -> LibraryContext:
        """Begin the exchange of one message for an answer.

        Raises
        ------
        TransportLost
            The connection was closed.
        """
        with self._lock:
            try:
                if timeout_ms != self._timeout_ms:
                    self._socket.recv_timeout = self._socket.send_timeout = timeout_ms
                    self._timeout_ms = timeout_ms
                context = self._socket.new_context()  # inherits them
                return LibraryContext(self._library, self._path, context)
            except self._library.NNGException as error:
                raise _ours(self._library, error) from None

    def hangs_up(self, seconds: float) -> bool:
        """Tell whether the daemon ends the connection at once."""
        ended = threading.Event()
        self._socket.add_post_pipe_remove_cb(lambda _: ended.set())
        return not self._socket.pipes or ended.wait(seconds)

    def abandon(self) -> None:
        """Drop the parent's connection without closing it."""

    def close(self) -> None:
        """Close the connection; exchanges under way fail."""
        if usable():
            self._socket.close()


class LibraryContext:
    """One exchange; see `LibrarySocket.new_context`."""

    def __init__(self, library: Any, path: Path, context: Any) -> None:
        self._library = library
        self._path = path
        self._context = context

    def send(self, data: bytes) -> None:
        """Send the request, or raise TransportError.

        Without a connection, the library tries to connect again until the time is over.
        """
        try:
            self._context.send(data)
        except self._library.NNGException as error:
            if isinstance(error, self._library.Timeout) and not _listens(self._path):
                raise TransportLost("the connection is gone") from None
            raise _ours(self._library, error) from None

    def recv(self) -> bytes:
        """Return the answer to the request, or raise TransportError."""
        try:
            return bytes(self._context.recv())
        except self._library.NNGException as error:
            raise _ours(self._library, error) from None

    def close(self) -> None:
        """End the exchange."""
        if usable():  # a handler of a signal may have forked in the middle of it
            with suppress(self._library.NNGException):  # closing the connection took it along
                self._context.close()


def _listens(path: Path) -> bool:
    """Tell whether a process listens; the library's own list may hold dead connections."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.setblocking(False)
        try:
            trial.connect(str(path))
        except BlockingIOError:
            return True  # it has much to do
        except OSError:
            return False
    return True


def _ours(library: Any, error: Exception) -> TransportError:
    """Convert an exception of the library to one of ours."""
    if isinstance(error, library.Timeout):
        return TransportTimeout(str(error))
    ended = (library.ConnectionReset, library.ConnectionRefused, library.Closed)
    return (TransportLost if isinstance(error, ended) else TransportError)(str(error))
