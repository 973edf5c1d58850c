"""The storage of a shared cache, through fsspec: a folder, an HTTP server, or a bucket.

It holds two kinds of objects, as ``URL/ac/SHA256`` and ``URL/cas/SHA256``, which is the layout of
Bazel's HTTP caches. Entries are small and replaceable, and named by the sha256 of their keys. Blobs
are named by the sha256 of their content. Whoever holds the storage is not trusted: what is read is
bounded, and no request is waited for longer than its bytes need.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import ipaddress
import itertools
import json
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.types import Json
from gpuemu_flow.store.cache import BlobStore, JsonStore, WorkspaceCache
from gpuemu_flow.store.keys import MAX_SETS, Discovered, digest_json, visible
from gpuemu_flow.store.private_files import PrivateFolder

ACTION = "ac"
"""Kind of entries, which are small and replaceable, and named by the sha256 of their keys."""
CONTENT = "cas"
"""Kind of blobs, which are named by the sha256 of their content."""
MOST_ENTRY_BYTES = 64 << 20
MOST_BLOB_BYTES = 8 << 30
T = TypeVar("T")
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
    """Reads and writes the objects of a shared cache. Thread-safe. Credentials and endpoint of a
    bucket come from the configuration and environment of its package (``AWS_ENDPOINT_URL``). A
    folder's parent must exist, so that no cache is made in the empty mount point of a share that is
    not mounted."""

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
        """Write an object to `sink`; return False if it does not exist. Raises RemoteError, or
        TooLargeError above `limit` bytes; `sink` may then hold a part."""
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
        """Return the result of a call; None if the object does not exist. Other errors become
        RemoteErrors, since each store's package has types of its own."""
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
        """Return the result of a call that a thread of its own makes, unless it takes too long. A
        server that stalls or drips, or a mount that hangs, thus delays no run for long, and the end
        of no process: the thread is left behind."""
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
    """Return the options of fsspec's HTTP file system. Redirects are not followed: the header that
    grants access must reach no other host. Bodies are taken as they come, since one that is encoded
    could be larger than its bytes."""
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


VERSION = 2
MOST_BLOBS = 1_000_000
LEAST_KEY_BYTES = 16
_MAGIC = b"gpuemu-flow entry 2\n"
_UNSIGNED = b"-" * 64
_Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Size = Annotated[int, msgspec.Meta(ge=0)]


class EntryError(Exception):
    """Raised for bytes that are not an entry, and for an entry that is not trusted."""

    def __init__(self, reason: str, *, forged: bool = False) -> None:
        super().__init__(reason)
        self.forged = forged  # it has no signature, or one by another key


class Entry(msgspec.Struct, frozen=True):
    """Records of the action cache by their keys, and the sizes of the blobs that they name."""

    records: dict[_Digest, Json]
    blobs: Annotated[dict[_Digest, _Size], msgspec.Meta(max_length=MOST_BLOBS)] = {}


def name_of(kind: str, keys: Json) -> str:
    """Return the name of the entry with the results for some keys of the action cache."""
    return digest_json(["gpuemu-flow", VERSION, kind, keys])


def encode(name: str, entry: Entry, secret: bytes | None) -> bytes:
    """Convert an entry to bytes; the signature covers its name, so that it has no other."""
    content = {"records": entry.records, "blobs": entry.blobs}
    payload = zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 6)
    signature = _UNSIGNED if secret is None else _sign(name, payload, secret)
    return _MAGIC + signature + b"\n" + payload


def decode(name: str, data: bytes, secret: bytes | None) -> Entry:
    """Convert untrusted bytes to an entry; raise EntryError if they are none."""
    head, signature = data[: len(_MAGIC)], data[len(_MAGIC) : len(_MAGIC) + 64]
    payload = data[len(_MAGIC) + 65 :]
    if head != _MAGIC or len(signature) != 64:
        raise EntryError("it is not an entry of gpuemu-flow")
    if secret is not None and not hmac.compare_digest(signature, _sign(name, payload, secret)):
        signed = "another key's" if signature != _UNSIGNED else "no"
        raise EntryError(f"it has {signed} signature", forged=True)
    try:
        # The standard library's JSON at both ends, as in the own cache: it has NaN and Inf.
        return convert(json.loads(_inflate(payload)), Entry)
    except (zlib.error, ValueError, RecursionError) as error:
        raise EntryError("its content is not that of an entry") from error


def _sign(name: str, payload: bytes, secret: bytes) -> bytes:
    message = b"gpuemu-flow/ac\0" + name.encode() + b"\0" + payload
    return hmac.new(secret, message, hashlib.sha256).hexdigest().encode()


def _inflate(payload: bytes) -> bytes:
    inflater = zlib.decompressobj()
    content = inflater.decompress(payload, MOST_ENTRY_BYTES)
    if not inflater.eof or inflater.unused_data:
        raise ValueError("too large, or more than one content")
    return content


# A workspace's configuration can come from a pull request. Therefore, a cache that only the
# configuration names is read, but does not get the user's secret header. Results are stored in it
# only if it is on this machine. A cache that the environment names has no such restrictions.

REMOTE = "GPUEMU_CACHE_REMOTE"
MODE = "GPUEMU_CACHE_MODE"
HEADER = "GPUEMU_CACHE_HEADER"
KEY = "GPUEMU_CACHE_KEY"
TIMEOUT = "GPUEMU_CACHE_TIMEOUT"
PATIENCE_SECONDS = 10.0
"""Seconds that a request may take, besides those that its bytes need."""
LONGEST_PATIENCE = 3600.0
NONE = "none"
READ, WRITE = "read", "write"
HTTP = ("http", "https")
THROUGH_FSSPEC = ("s3", "gs", "az")


class CacheAccess(msgspec.Struct, frozen=True):
    """A shared cache, and the access rights of this run."""

    url: str
    mode: str
    header: tuple[str, str] | tuple[()] = ()
    secret: bytes | None = None  # the signing key; None for unsigned entries
    problems: tuple[Problem, ...] = ()  # rights that were configured, but not granted
    patience: float = PATIENCE_SECONDS

    def transport(self, cancel: threading.Event | None = None) -> Transport:
        """Make the transport for the cache, without sending a request. Raises UsageError:
        ``cache-remote-package`` if a package is missing."""
        return Transport(self.url, self.header, patience=self.patience, cancel=cancel)


def place_of(remote: str, mode: str, environ: Mapping[str, str]) -> CacheAccess | None:
    """Return the shared cache of a run; None if there is none. `remote` and `mode` are the
    configuration's settings; `remote` may be empty. Raises UsageError: ``cache-remote-value`` for
    invalid values of environment variables."""
    named = environ.get(REMOTE, "")
    url = named or remote
    if not url or url == NONE:
        return None
    parts = _split(url)
    mode = environ.get(MODE, "") or mode
    if mode not in (READ, WRITE):
        raise _wrong(MODE, f"it is neither {READ} nor {WRITE}")
    header = _header(environ.get(HEADER, ""))
    problems = []
    granted = urlsplit(named) == parts if named else False
    if header and not granted:
        problems.append(_ungranted(url, f"{HEADER} is not sent"))
        header = ()
    if mode == WRITE and not granted and not _is_near(parts):
        problems.append(_ungranted(url, "nothing is stored"))
        mode = READ
    secret = _secret(environ.get(KEY, ""))
    return CacheAccess(
        url, mode, header, secret, tuple(problems), _patience(environ.get(TIMEOUT, ""))
    )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _wrong(REMOTE, str(error)) from error
    known = parts.scheme in ("file", *HTTP, *THROUGH_FSSPEC)
    if not known or not url.isprintable() or " " in url or (port == 0):
        raise _wrong(REMOTE, "it is no URL of a cache: file, https, http, s3, gs or az")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise _wrong(REMOTE, f"it has a user or a query; what grants access belongs to {HEADER}")
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise _wrong(REMOTE, "a file's URL has three slashes and an absolute path")
    if parts.scheme != "file" and not parts.hostname:
        raise _wrong(REMOTE, "it names no host")
    return parts


def _is_near(parts: SplitResult) -> bool:
    """Tell whether a cache is on this machine: a folder, or a server at a local address."""
    if parts.scheme == "file" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def _header(text: str) -> tuple[str, str] | tuple[()]:
    if not text:
        return ()
    name, colon, value = text.partition(":")
    sound = name.replace("-", "").isalnum() and name.isascii()
    if not colon or not sound or not value.strip() or not value.isprintable():
        raise _wrong(HEADER, "it is not NAME: VALUE")
    if not value.isascii():
        raise _wrong(HEADER, "it holds letters beyond ASCII")
    return name, value.strip()


def _secret(text: str) -> bytes | None:
    if not text:
        return None
    if len(text.encode()) < LEAST_KEY_BYTES:
        raise _wrong(KEY, f"it has less than {LEAST_KEY_BYTES} bytes")
    return text.encode()


def _patience(text: str) -> float:
    if not text:
        return PATIENCE_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= LONGEST_PATIENCE:
        raise _wrong(TIMEOUT, f"it is no number of seconds up to {LONGEST_PATIENCE:g}")
    return seconds


def _wrong(variable: str, reason: str) -> UsageError:
    # The value may be a secret, and is not shown.
    return UsageError(Problem("cache-remote-value", f"{variable} cannot be used: {reason}"))


def _ungranted(url: str, effect: str) -> Problem:
    return Problem(
        "cache-remote-ungranted",
        f"only the file of the workspace names {url}: {effect}",
        f"set {REMOTE} to its URL to allow that",
        warning=True,
    )


# No error of the cache fails a run. Results that a broken or hostile cache does not provide are
# computed.

REQUEST_THREADS = 8
MOST_FAILURES = 3
"""Number of consecutive failed requests after which the run stops using the cache."""
MOST_NAMES = 200_000
LONGEST_NAME = 4096
_numbers = itertools.count()


class SharedCache:
    """A shared cache, for the duration of one run. Thread-safe. `shown` is its address for
    messages, without secrets. Received blobs lie in `staging` until their content is verified;
    with a `secret`, entries without its signature are ignored. After `cancel` no request is
    waited for."""

    def __init__(
        self,
        transport: Transport,
        shown: str,
        actions: JsonStore,
        blobs: BlobStore,
        staging: PrivateFolder,
        report: Callable[[Problem], None],
        cancel: threading.Event,
        *,
        secret: bytes | None = None,
        writes: bool = False,
    ) -> None:
        self._transport = transport
        self._shown = shown
        self._actions = actions
        self._blobs = blobs
        self._staging = staging
        self._report = report
        self._cancel = cancel
        self._secret = secret
        self._writes = writes
        self._threads = ThreadPoolExecutor(REQUEST_THREADS, "shared-cache")
        self._stores: list[Future[None]] = []
        self._promised: set[str] = set()
        self._there: set[str] = set()
        self._turns: dict[str, threading.Lock] = {}
        self._failures = {False: 0, True: 0}  # in a row, of writing and of other requests
        self._left = self._read_only = False
        self._told: set[str] = set()
        self._lock = threading.Lock()

    @property
    def writes(self) -> bool:
        """Tell whether results are stored; False after too many errors."""
        return self._writes and not self._left and not self._read_only

    def sets(self, place: str, names: Sequence[str]) -> list[Discovered]:
        entry = self._entry(name_of("inputs", place))
        found = [] if entry is None else entry.records.get(place)
        sets = []
        for data in found[:MAX_SETS] if isinstance(found, list) else ():
            with contextlib.suppress(ValueError, TypeError):
                each = convert(data, Discovered)
                if _sound(each) and all(visible(name, names) for name in each.variables):
                    sets.append(each)
        return sets

    def store_set(self, place: str, used: Discovered, names: Sequence[str]) -> None:
        """Store a set of inputs as the newest one, unless the cache has it already."""
        known = self.sets(place, names)
        if used in known:
            return
        sets = [used, *known][:MAX_SETS]
        name = name_of("inputs", place)
        self._store_entry(name, Entry({place: [each.stored for each in sets]}))

    def fetch(self, keys: Sequence[str]) -> bool:
        """Copy the results for some keys to the action cache; return True if all were found."""
        entry = self._entry(name_of("results", sorted(keys)))
        if entry is None:
            return False
        wanted = set(keys)
        found = {key: value for key, value in entry.records.items() if key in wanted}
        with self._lock:
            self._promised.update(entry.blobs)
        self._actions.put_many(found.items())
        return len(found) == len(wanted)

    def promises(self, digest: str) -> bool:
        """Tell whether one of the entries read so far lists this blob."""
        return digest in self._promised

    def store(self, keys: Sequence[str], records: Mapping[str, Json], blobs: Iterable[str]) -> None:
        """Store results: first the blobs that they name, then the entry. `keys` are all keys that
        are looked up together, including keys without a result."""
        if not self.writes:
            return
        sizes = {digest: self._blobs.size(digest) for digest in set(blobs)}
        entry = Entry(dict(records), sizes)
        name = name_of("results", sorted(keys))
        with self._lock:
            self._stores.append(self._threads.submit(lambda: self._store(name, entry)))

    def fetch_blobs(self, digests: Iterable[str]) -> None:
        """Copy blobs to the workspace's cache, those that are there and intact."""
        wanted = sorted({digest for digest in digests if digest})
        if not self._left:
            wait([self._threads.submit(self._fetch_blob, digest) for digest in wanted])

    def finish(self) -> None:
        """Wait until everything is stored, unless the run was cancelled."""
        wait(self._stores)
        self._left = self._left or self._cancel.is_set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _entry(self, name: str) -> Entry | None:
        sink = io.BytesIO()
        found = self._ask(lambda: self._transport.get(ACTION, name, sink, MOST_ENTRY_BYTES))
        if not found:
            return None
        try:
            entry = decode(name, sink.getvalue(), self._secret)
        except EntryError as error:
            slug = "cache-remote-unsigned" if error.forged else "cache-remote-damaged"
            self._tell(slug, f"an entry of {self._shown} is not used: {error}")
            return None
        return entry

    def _fetch_blob(self, digest: str) -> None:
        path = self._staging.root / "staging" / f"shared-{os.getpid()}-{next(_numbers)}"
        self._staging.make(path.parent)
        try:
            descriptor = self._staging.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            with os.fdopen(descriptor, "w+b") as sink:
                found = self._attempt(
                    lambda: self._transport.get(CONTENT, digest, sink, MOST_BLOB_BYTES)
                )
                if not found:
                    return
                content = _digest(sink)
            if content != digest:
                slug = "cache-remote-damaged"
                text = f"a blob of {self._shown} is not used: its content is not what its name says"
                self._tell(slug, text)
            else:
                self._blobs.publish(path, digest)
        finally:
            with contextlib.suppress(OSError):
                path.unlink()

    def _store(self, name: str, entry: Entry) -> None:
        for digest, size in entry.blobs.items():
            if self._left or self._cancel.is_set() or not self._store_blob(digest, size):
                return
        self._put_entry(name, entry)

    def _store_entry(self, name: str, entry: Entry) -> None:
        if self.writes:
            with self._lock:
                self._stores.append(self._threads.submit(lambda: self._put_entry(name, entry)))

    def _put_entry(self, name: str, entry: Entry) -> None:
        data = encode(name, entry, self._secret)
        self._attempt(lambda: self._put(ACTION, name, data), writing=True)

    def _store_blob(self, digest: str, size: int) -> bool:
        """Store a blob if the cache lacks it; return True if the cache has it now."""
        with self._lock:
            turn = self._turns.setdefault(digest, threading.Lock())
        with turn:  # several entries may name it
            if digest in self._there:
                return True
            there = self._attempt(lambda: self._transport.has(CONTENT, digest))
            if there is None:
                return False
            if not there:
                # What was damaged on this disk must not become an answer elsewhere.
                data = self._blobs.read(digest)
                if data is None:
                    return False
                if not self._attempt(lambda: self._put(CONTENT, digest, data), writing=True):
                    return False
            self._there.add(digest)
            return True

    def _put(self, kind: str, key: str, source: bytes | Path) -> bool:
        self._transport.put(kind, key, source)
        return True

    def _ask(self, call: Callable[[], T]) -> T | None:
        if self._left:
            return None
        return self._threads.submit(self._attempt, call).result()

    def _attempt(self, call: Callable[[], T], *, writing: bool = False) -> T | None:
        """Make a request; return None if it fails. Requests that store data (`writing` is True) and
        other requests are counted apart. If the cache refuses a request, or if too many requests of
        one of these two kinds fail in a row, requests are stopped, and the result is then None
        without a request. Failures to store data stop only further requests that store data;
        failures of other requests stop all requests."""
        if self._left or (writing and self._read_only):
            return None
        try:
            found = call()
        except RemoteError as error:
            if not self._cancel.is_set():
                self._failed(error, writing=writing)
            return None
        with self._lock:
            self._failures[writing] = 0
        return found

    def _failed(self, error: RemoteError, *, writing: bool) -> None:
        if isinstance(error, TooLargeError):
            self._tell("cache-remote-damaged", f"{self._shown} gave {error}")
            return
        with self._lock:
            self._failures[writing] += 1
            over = error.refused or self._failures[writing] >= MOST_FAILURES
            self._read_only = self._read_only or over
            self._left = self._left or (over and not writing)
        if error.refused:
            self._tell("cache-remote-refused", f"{self._shown} refuses requests: {error}")
        elif over:
            effect = "gets no more results" if writing else "is left for the rest of this run"
            self._tell("cache-remote-unreachable", f"{self._shown} {effect}: {error}")

    def _tell(self, slug: str, text: str) -> None:
        with self._lock:
            if slug in self._told:
                return
            self._told.add(slug)
        self._report(Problem(slug, text, _HINTS[slug], warning=True))


_HINTS = {
    "cache-remote-unreachable": "what it would have answered was computed; see to the server",
    "cache-remote-refused": "check GPUEMU_CACHE_HEADER and the rights of this user",
    "cache-remote-damaged": "what it said was computed; `gpuemu-flow cache verify` looks at all",
    "cache-remote-unsigned": "only entries signed with GPUEMU_CACHE_KEY count where it is set",
}


def open_shared(
    remote: str,
    mode: str,
    environ: Mapping[str, str],
    cache: WorkspaceCache,
    cancel: threading.Event,
) -> SharedCache | None:
    """Open the shared cache of a run; return None if no cache is configured. Variables of `environ`
    override `remote` and `mode`, the configuration's settings. Raises UsageError:
    ``cache-remote-value``, ``cache-remote-package``."""
    place = place_of(remote, mode, environ)
    if place is None:
        return None
    cache.problems += place.problems
    return SharedCache(
        place.transport(cancel),
        place.url,
        cache.actions,
        cache.blobs,
        cache.files,
        cache.problems.append,
        cancel,
        secret=place.secret,
        writes=place.mode == WRITE,
    )


def _digest(file: BinaryIO) -> str:
    file.seek(0)
    found = hashlib.sha256()
    while block := file.read(BLOCK):
        found.update(block)
    return found.hexdigest()


def _sound(names: Discovered) -> bool:
    """Tell whether a set of inputs from the cache has only valid names, and not too many."""
    paths = [*names.files, *names.links, *names.missed, *names.listed]
    paths += [*names.looked, *names.packages, *names.pythons]
    return len(paths) <= MOST_NAMES and all(
        path and "\0" not in path and len(path) <= LONGEST_NAME for path in paths
    )
