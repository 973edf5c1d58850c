"""Exchange a run's results, blobs and sets of inputs with a shared cache.

No error of the cache fails a run. Results that a broken or hostile cache does not provide are
computed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import BinaryIO, TypeVar

from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.types import Json
from gpuemu_flow.store.blobs import BlobStore
from gpuemu_flow.store.cache import JsonStore
from gpuemu_flow.store.discovered import MAX_SETS, Discovered, visible
from gpuemu_flow.store.private_files import PrivateFolder
from gpuemu_flow.store.remote.entry import Entry, EntryError, decode, encode, name_of
from gpuemu_flow.store.remote.place import WRITE, place_of
from gpuemu_flow.store.remote.transport import (
    ACTION,
    BLOCK,
    CONTENT,
    MOST_BLOB_BYTES,
    MOST_ENTRY_BYTES,
    RemoteError,
    TooLargeError,
    Transport,
)
from gpuemu_flow.store.workspace_cache import WorkspaceCache

T = TypeVar("T")
REQUEST_THREADS = 8
MOST_FAILURES = 3
"""Number of consecutive failed requests after which the run stops using the cache."""
MOST_NAMES = 200_000
LONGEST_NAME = 4096
_numbers = itertools.count()


class TransferCounts:
    """Entries and bytes that a run stored in a shared cache; approximate because of races."""

    def __init__(self) -> None:
        self.stored = self.bytes_out = 0


class SharedCache:
    """A shared cache, for the duration of one run. Thread-safe.

    `shown` is its address for messages, without secrets. Received blobs lie in `staging` until
    their content is verified; with a `secret`, entries without its signature are ignored. After
    `cancel` no request is waited for.
    """

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
        self.counts = TransferCounts()

    @property
    def writes(self) -> bool:
        """Tell whether results are stored; False after too many errors."""
        return self._writes and not self._left and not self._read_only

    def sets(self, place: str, names: Sequence[str]) -> list[Discovered]:
        """Return the sets of inputs that programs were seen to use, stored under the key `place`.

        Sets with other variables than `names`, which the configuration passes to programs, are left
        out, since a request for their results would reveal these variables to the cache.
        """
        entry = self._entry(name_of("inputs", place))
        found = [] if entry is None else entry.records.get(place)
        sets = []
        for data in found[:MAX_SETS] if isinstance(found, list) else ():
            with contextlib.suppress(ValueError, TypeError):
                each = Discovered.from_json(data)
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
        self._store_entry(name, Entry({place: [each.to_json() for each in sets]}))

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
        """Store results: first the blobs that they name, then the entry.

        `keys` are all keys that are looked up together, including keys without a result.
        """
        if not self.writes:
            return
        sizes = {digest: self._blobs.size(digest) for digest in set(blobs)}
        entry = Entry(dict(records), sizes)
        name = name_of("results", sorted(keys))
        with self._lock:
            self._stores.append(self._threads.submit(lambda: self._store(name, entry)))

    def fetch_blobs(self, digests: Iterable[str]) -> set[str]:
        """Copy blobs to the workspace's cache; return the digests of the blobs that were intact."""
        wanted = sorted({digest for digest in digests if digest})
        if self._left or not wanted:
            return set()
        jobs = {digest: self._threads.submit(self._fetch_blob, digest) for digest in wanted}
        wait(jobs.values())
        return {each for each, job in jobs.items() if job.exception() is None and job.result()}

    def finish(self) -> None:
        """Wait until everything is stored, unless the run was cancelled."""
        wait(self._stores)
        self._left = self._left or self._cancel.is_set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _entry(self, name: str) -> Entry | None:
        """Read an entry; return None if it is missing or invalid."""
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

    def _fetch_blob(self, digest: str) -> bool:
        path = self._staging.root / "staging" / f"shared-{os.getpid()}-{next(_numbers)}"
        self._staging.make(path.parent)
        try:
            descriptor = self._staging.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            with os.fdopen(descriptor, "w+b") as sink:
                found = self._attempt(
                    lambda: self._transport.get(CONTENT, digest, sink, MOST_BLOB_BYTES)
                )
                if not found:
                    return False
                content = _digest(sink)
            if content != digest:
                slug = "cache-remote-damaged"
                text = f"a blob of {self._shown} is not used: its content is not what its name says"
                self._tell(slug, text)
                return False
            self._blobs.publish(path, digest)
            return True
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
        if self._attempt(lambda: self._put(ACTION, name, data), writing=True):
            self.counts.stored += 1
            self.counts.bytes_out += len(data)

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
                if self._blobs.read(digest) is None:
                    return False
                path = self._blobs.path(digest)
                if not self._attempt(lambda: self._put(CONTENT, digest, path), writing=True):
                    return False
                self.counts.bytes_out += size
            self._there.add(digest)
            return True

    def _put(self, kind: str, key: str, source: bytes | Path) -> bool:
        self._transport.put(kind, key, source)
        return True

    def _ask(self, call: Callable[[], T]) -> T | None:
        """Make a request in one of the threads, and return its result; None if it failed."""
        if self._left:
            return None
        return self._threads.submit(self._attempt, call).result()

    def _attempt(self, call: Callable[[], T], *, writing: bool = False) -> T | None:
        """Make a request; return None if it fails.

        Requests that store data (`writing` is True) and other requests are counted apart. If the
        cache refuses a request, or if too many requests of one of these two kinds fail in a row,
        requests are stopped, and the result is then None without a request. Failures to store data
        stop only further requests that store data; failures of other requests stop all requests.
        """
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
    """Open the shared cache of a run; return None if no cache is configured.

    Variables of `environ` override `remote` and `mode`, the configuration's settings.

    Raises UsageError: ``cache-remote-value``, ``cache-remote-package``.
    """
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
    """Return the sha256 of a whole file, whatever its present position."""
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
