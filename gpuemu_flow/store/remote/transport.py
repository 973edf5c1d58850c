"""The storage of a shared cache, through fsspec: a folder, an HTTP server, or a bucket.

It holds two kinds of objects, as ``URL/ac/SHA256`` and ``URL/cas/SHA256``, which is the layout of
Bazel's HTTP caches. Entries are small and replaceable, and named by the sha256 of their keys. Blobs
are named by the sha256 of their content. Whoever holds the storage is not trusted: what is read is
bounded, and no request is waited for longer than its bytes need.
"""

from __future__ import annotations

import io
import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

from gpuemu_flow.model.errors import Problem, UsageError

ACTION = "ac"
"""Kind of entries, which are small and replaceable, and named by the sha256 of their keys."""
CONTENT = "cas"
"""Kind of blobs, which are named by the sha256 of their content."""
MOST_ENTRY_BYTES = 64 << 20
MOST_BLOB_BYTES = 8 << 30
BLOCK = 1 << 20
SLOWEST = 100_000
"""Slowest accepted transfer, in bytes per second; each request has some seconds besides."""
PAUSES = (0.2, 1.0)
"""Seconds before a request that failed is made a second and a third time."""
_GLANCE_SECONDS = 0.1
_SHA256 = re.compile(r"[0-9a-f]{64}")
_EXTRAS = {
    "http": "gpuemu-flow[http]",
    "https": "gpuemu-flow[http]",
    "s3": "gpuemu-flow[s3]",
    "gs": "gcsfs",
    "az": "adlfs",
}
T = TypeVar("T")


class RemoteError(Exception):
    """Error of a failed request to a shared cache; it is unknown whether the object exists."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused  # the server denied access


class TooLargeError(RemoteError):
    """The error that a remote object is larger than any object that this program writes."""


def is_key(key: object) -> bool:
    """Tell whether a value is a valid object name: a sha256 in lower-case hex."""
    return isinstance(key, str) and _SHA256.fullmatch(key) is not None


class Transport:
    """Reads and writes the objects of a shared cache. Thread-safe.

    Credentials and endpoint of a bucket come from the configuration and environment of its package
    (``AWS_ENDPOINT_URL``). A folder's parent must exist, so that no cache is made in the empty
    mount point of a share that is not mounted.
    """

    def __init__(
        self,
        url: str,
        header: tuple[str, str] | tuple[()] = (),
        *,
        patience: float,
        cancel: threading.Event | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._is_folder = parts.scheme == "file"
        self._is_http = parts.scheme in ("http", "https")
        self._base = unquote(parts.path) if self._is_folder else url.rstrip("/")
        self._patience = patience
        self._cancel = cancel or threading.Event()
        try:
            import fsspec  # noqa: PLC0415 - not every run has a shared cache

            options = _http_options(header, patience) if self._is_http else {}
            self._store: Any = fsspec.filesystem(
                parts.scheme, use_listings_cache=False, skip_instance_cache=True, **options
            )
        except ImportError as error:
            hint = f"pip install '{_EXTRAS.get(parts.scheme, 'fsspec')}'"
            text = f"a cache at {parts.scheme}:// needs a package that is not installed: {error}"
            raise UsageError(Problem("cache-remote-package", text, hint)) from error

    def get(self, kind: str, key: str, sink: BinaryIO, limit: int) -> bool:
        """Write an object to `sink`; return False if it does not exist.

        Raises RemoteError, or TooLargeError above `limit` bytes; `sink` may then hold a part.
        """
        path = self._path(kind, key)
        total = 0

        def read() -> bool:
            nonlocal total
            total = 0
            sink.seek(0)
            sink.truncate()
            if self._is_folder:
                self._check_regular(path)
            with self._open(path) as file:
                while block := file.read(BLOCK):
                    total += len(block)
                    if total > limit:
                        raise TooLargeError(f"an object of more than {limit >> 20} MiB")
                    sink.write(block)
            return True

        return bool(self._request(read, lambda: total))

    def has(self, kind: str, key: str) -> bool:
        """Tell whether an object exists; raise RemoteError if the request fails."""
        path = self._path(kind, key)

        def look() -> bool:
            if self._is_http:
                with self._open(path):  # `exists` would say no of a server that is down
                    return True
            return bool(self._store.info(path)["type"] == "file")

        return bool(self._request(look))

    def put(self, kind: str, key: str, source: bytes | Path) -> None:
        """Store an object, whole or not at all; raise RemoteError if that fails."""
        path = self._path(kind, key)
        try:
            size = len(source) if isinstance(source, bytes) else source.stat().st_size
        except OSError as error:  # a blob that another process has just deleted
            raise RemoteError(_reason(error)) from error

        def write() -> bool:
            if self._is_http:
                data = io.BytesIO(source) if isinstance(source, bytes) else str(source)
                length = {**self._store.kwargs["headers"], "Content-Length": str(size)}
                self._store.put_file(data, path, method="put", headers=length)
                return True
            staged = path
            if self._is_folder:
                self._check_mounted()
                self._store.makedirs(f"{self._base}/{kind}", exist_ok=True)
                if self._store.info(f"{self._base}/{kind}")["islink"]:
                    raise RemoteError(f"{kind} is a link")
                staged = f"{self._base}/{kind}/.{key}-{os.getpid()}-{threading.get_ident()}"
            try:
                if isinstance(source, bytes):
                    self._store.pipe_file(staged, source)
                else:
                    self._store.put_file(str(source), staged)
                if self._is_folder:
                    self._store.mv(staged, path)
            except Exception:
                if self._is_folder:
                    Path(staged).unlink(missing_ok=True)
                raise
            return True

        if not self._request(write, lambda: size):
            raise RemoteError("there is no such place")

    def _open(self, path: str) -> Any:
        # A stream: of a server, fsspec would ask for the size of what it reads in blocks.
        how = {"block_size": 0, "size": 1} if self._is_http else {"block_size": 4 * BLOCK}
        return self._store.open(path, "rb", **how)

    def _path(self, kind: str, key: str) -> str:
        if kind not in (ACTION, CONTENT) or not is_key(key):
            raise ValueError(f"no object: {kind}/{key}")
        return f"{self._base}/{kind}/{key}"

    def _check_mounted(self) -> None:
        parent = Path(self._base).parent
        if not parent.is_dir():
            raise RemoteError(f"there is no folder {parent}")

    def _check_regular(self, path: str) -> None:
        """Raise RemoteError for a link, or for a pipe, which would never end."""
        info = self._store.info(path)
        if info["type"] != "file" or info["islink"]:
            raise RemoteError("no regular file")

    def _request(self, call: Callable[[], T], moved: Callable[[], int] = lambda: 0) -> T | None:
        """Return the result of a call; None if the object does not exist.

        Other errors become RemoteErrors, since each store's package has types of its own.
        """
        for pause in (*PAUSES, None):
            try:
                return self._timed(call, moved)
            except FileNotFoundError:
                if self._is_folder:
                    self._check_mounted()
                return None
            except PermissionError as error:
                raise RemoteError(_reason(error), refused=True) from error
            except RemoteError:
                raise
            except Exception as error:
                if pause is None or self._cancel.wait(pause):
                    raise RemoteError(_reason(error)) from error
        raise AssertionError("the last attempt returns or raises")

    def _timed(self, call: Callable[[], T], moved: Callable[[], int]) -> T:
        """Return the result of a call that a thread of its own makes, unless it takes too long.

        A server that stalls or drips, or a mount that hangs, thus delays no run for long, and the
        end of no process: the thread is left behind.
        """
        future: Future[T] = Future()

        def make() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        begin = time.monotonic()
        threading.Thread(target=make, name="shared-cache", daemon=True).start()
        while not wait((future,), _GLANCE_SECONDS).done:
            if self._cancel.is_set():
                raise RemoteError("the run was cancelled")
            if time.monotonic() - begin > self._patience + moved() / SLOWEST:
                raise RemoteError(f"it took longer than {self._patience:g} s, and its bytes' time")
        return future.result()


def _http_options(header: tuple[str, str] | tuple[()], patience: float) -> dict[str, Any]:
    """Return the options of fsspec's HTTP file system.

    Redirects are not followed: the header that grants access must reach no other host. Bodies are
    taken as they come, since one that is encoded could be larger than its bytes.
    """
    import aiohttp  # noqa: PLC0415 - an extra

    async def check(response: aiohttp.ClientResponse) -> None:
        if response.status in (404, 410):
            raise FileNotFoundError(str(response.url))
        if response.status in (401, 403, 407):
            raise PermissionError(f"it answers {response.status} to {response.method}")
        if response.status >= 300:
            raise OSError(f"it answers {response.status} to {response.method}")

    headers = {"Accept-Encoding": "identity", "User-Agent": "gpuemu-flow"}
    if header:
        headers[header[0]] = header[1]
    return {
        "allow_redirects": False,
        "headers": headers,
        "client_kwargs": {
            "auto_decompress": False,
            "raise_for_status": check,
            # For the threads that are left behind.
            "timeout": aiohttp.ClientTimeout(None, sock_connect=patience, sock_read=2 * patience),
        },
    }


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]
