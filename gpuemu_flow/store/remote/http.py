"""A shared cache behind HTTP: GET, PUT and HEAD of ``/ac/SHA256`` and ``/cas/SHA256``."""

from __future__ import annotations

import http.client
import random
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import SplitResult

from gpuemu_flow.store.remote.transport import BLOCK, RemoteError, TooLargeError, is_key

T = TypeVar("T")
PATIENCE = 3.0
"""Time limit as a multiple of `silence`, for the head of an answer and for its body; the body gets
additional time, enough for a transfer at the rate `SLOWEST`."""
SLOWEST = 100_000
"""Slowest accepted transfer, in bytes per second."""
ATTEMPTS = 3
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
_OK, _NOT_FOUND, _GONE, _NO_METHOD, _NOT_IMPLEMENTED = 200, 404, 410, 405, 501
_STORED = (200, 201, 202, 204)
_REFUSED = (401, 403, 407)
_LATER = (429, 500, 502, 503, 504)
_MOST_OF_A_BODY = 1 << 16  # that is read so that the connection can be used again


class _Later(Exception):  # noqa: N818 - an event, not an error
    """Raised if a request failed, but may succeed if it is made again."""

    def __init__(self, reason: str, pause: float = 0.0) -> None:
        super().__init__(reason)
        self.pause = pause


class _Watch:
    """Closes connections after a deadline, since a server may send bytes slowly without end."""

    def __init__(self) -> None:
        self._until: dict[http.client.HTTPConnection, float] = {}
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None
        self._over = False

    def begin(self, connection: http.client.HTTPConnection, seconds: float) -> None:
        with self._lock:
            self._until[connection] = time.monotonic() + seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, daemon=True)
                self._thread.start()

    def end(self, connection: http.client.HTTPConnection) -> bool:
        """Stop watching a connection; return False if its deadline has already passed."""
        with self._lock:
            return self._until.pop(connection, 0.0) > time.monotonic()

    def close(self) -> None:
        self._over = True
        self._changed.set()

    def _look(self) -> None:
        while not self._changed.wait(1.0) and not self._over:
            with self._lock:
                late = [c for c, until in self._until.items() if until < time.monotonic()]
            for connection in late:
                sock = connection.sock
                if sock is not None:
                    try:
                        sock.shutdown(2)
                    except OSError:
                        continue


class HttpTransport:
    """Stores objects on an HTTP server, in the layout of Bazel's caches.

    Redirects are not followed: the header that grants access must reach no other host.

    Parameters
    ----------
    parts : SplitResult
        The URL.
    header : tuple of str
        Name and value of a header to send with each request; empty for none.
    silence : float
        Seconds without a received byte after which a request fails.
    """

    def __init__(
        self,
        parts: SplitResult,
        header: tuple[str, str] | tuple[()] = (),
        *,
        silence: float,
    ) -> None:
        self._host = parts.hostname or ""
        self._port = parts.port
        self._base = parts.path.rstrip("/")
        self._silence = silence
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "gpuemu-flow"}
        if header:
            self._headers[header[0]] = header[1]
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._watch = _Watch()

    def get(self, kind: str, key: str, sink: BinaryIO, limit: int) -> bool:
        def read(response: http.client.HTTPResponse) -> bool:
            if response.status != _OK:
                return _absent(response)
            sink.seek(0)
            sink.truncate()
            _copy(response, sink, limit, PATIENCE * self._silence)
            return True

        return self._request("GET", kind, key, read)

    def has(self, kind: str, key: str) -> bool:
        def read(response: http.client.HTTPResponse) -> bool:
            known = (_OK, _NO_METHOD, _NOT_IMPLEMENTED)
            return response.status == _OK if response.status in known else _absent(response)

        return self._request("HEAD", kind, key, read)

    def put(self, kind: str, key: str, source: bytes | Path) -> None:
        def read(response: http.client.HTTPResponse) -> None:
            if response.status not in _STORED:
                raise RemoteError(f"it answers {response.status} to PUT")

        self._request("PUT", kind, key, read, source)

    def close(self) -> None:
        """Close the idle connections."""
        self._watch.close()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _request(
        self,
        method: str,
        kind: str,
        key: str,
        read: Callable[[http.client.HTTPResponse], T],
        source: bytes | Path | None = None,
    ) -> T:
        """Make a request, and repeat it if another attempt may succeed."""
        if not is_key(key):
            raise ValueError(f"no object: {key}")
        path = f"{self._base}/{kind}/{key}"
        for left in reversed(range(ATTEMPTS)):
            try:
                return self._once(method, path, read, source)
            except _Later as error:
                if not left:
                    raise RemoteError(str(error)) from error
                pause = FIRST_PAUSE * 2 ** (ATTEMPTS - 1 - left) * random.uniform(0.5, 1.5)  # noqa: S311
                time.sleep(min(LONGEST_PAUSE, max(pause, error.pause)))
        raise AssertionError("the last attempt returns or raises")

    def _once(
        self,
        method: str,
        path: str,
        read: Callable[[http.client.HTTPResponse], T],
        source: bytes | Path | None,
    ) -> T:
        connection, is_used = self._connection()
        self._watch.begin(connection, PATIENCE * self._silence)
        is_answered = False
        try:
            try:
                response = self._send(connection, method, path, source)
            except (ConnectionError, http.client.RemoteDisconnected):
                if not is_used:
                    raise
                connection.close()  # the server had ended it meanwhile
                response = self._send(connection, method, path, source)
            self._watch.end(connection)
            is_answered = True
            if response.status in _REFUSED:
                raise RemoteError(f"it answers {response.status} to {method}", refused=True)
            if response.status in _LATER:
                raise _Later(f"it answers {response.status}", _retry_after(response))
            found = read(response)
            # What is left of a short answer is read, so that the connection can go on.
            if len(response.read(_MOST_OF_A_BODY)) == _MOST_OF_A_BODY:
                response.close()
                connection.close()
        except TimeoutError as error:
            connection.close()
            raise RemoteError(f"it says nothing for {self._silence:g} s") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            late = not is_answered and not self._watch.end(connection)
            if isinstance(error, ssl.SSLError):
                raise RemoteError(f"TLS: {error.reason or error}") from error
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            if late and not isinstance(error, http.client.HTTPException):
                raise RemoteError(reason) from error
            raise _Later(str(reason)[:200]) from error
        except BaseException:
            connection.close()
            raise
        finally:
            self._watch.end(connection)
        with self._lock:
            self._idle.append(connection)
        return found

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        source: bytes | Path | None,
    ) -> http.client.HTTPResponse:
        try:
            if isinstance(source, Path):
                with source.open("rb") as file:
                    size = source.stat().st_size
                    headers = {**self._headers, "Content-Length": str(size)}
                    connection.request(method, path, file, headers)
            else:
                connection.request(method, path, source, self._headers)
        except (BrokenPipeError, ConnectionResetError):
            if source is None:
                raise
            # It refused before it had read all: its answer says why.
        return connection.getresponse()

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        """Return a connection, and True if it was used before."""
        with self._lock:
            if self._idle:
                return self._idle.pop(), True
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._silence), False
        return (
            http.client.HTTPSConnection(
                self._host, self._port, timeout=self._silence, context=self._tls
            ),
            False,
        )


def _absent(response: http.client.HTTPResponse) -> bool:
    if response.status in (_NOT_FOUND, _GONE):
        return False
    raise RemoteError(f"it answers {response.status}")


def _copy(response: http.client.HTTPResponse, sink: BinaryIO, limit: int, patience: float) -> None:
    """Copy the body of a response to `sink`; raise an error if it is too long, short or slow."""
    if response.getheader("Content-Encoding", "identity") != "identity":
        raise RemoteError("it encodes the body, although it was asked not to")
    length = response.length
    if length is not None and length > limit:
        raise TooLargeError(f"an object of more than {limit >> 20} MiB")
    begin, total = time.monotonic(), 0
    while block := response.read1(BLOCK):
        total += len(block)
        if total > limit:
            raise TooLargeError(f"an object of more than {limit >> 20} MiB")
        if time.monotonic() - begin > patience + total / SLOWEST:
            raise RemoteError("it sends too slowly")
        sink.write(block)
    if length is not None and total != length:
        raise _Later("it ends in the middle of an answer")


def _retry_after(response: http.client.HTTPResponse) -> float:
    text = response.getheader("Retry-After", "")
    return min(LONGEST_PAUSE, float(text)) if text.isascii() and text.isdigit() else 0.0
