"""Store checksummed JSON records in a diskcache. Damaged records are moved aside, never used."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import json
import os
import re
import secrets
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from diskcache import Cache, Disk, Timeout
from diskcache.core import MODE_RAW, UNKNOWN
from msgspec import Struct, ValidationError

from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import Problem, StoreError
from gpuemu_flow.model.types import Json
from gpuemu_flow.store.keys import digest_bytes, encoded
from gpuemu_flow.store.private_files import (
    PrivateFolder,
    disk_errors,
    io_problem,
    user_cache_folder,
)

_DIGEST = re.compile(r"[0-9a-f]{64}")
SUFFIX = ".safetensors"
_SALT, _SALT_BYTES = "salt", 32
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NUMBERS = itertools.count()
_PLACE = "blob:"
"""What the keys of the rows begin with that say where small blobs lie."""
_SMALL, _MOST_WAITING = 1 << 16, 256
"""Largest blob, in bytes, that shares a file: to make a file takes longer than to write so much."""
LARGEST = 1 << 40
"""Largest size of a blob to read, in bytes."""


class _Place(Struct, frozen=True, array_like=True):
    """Where a small blob lies in a file of several: its first byte there, and its size."""

    file: str
    start: int
    size: int


class BlobStore:
    """Tensor files with paths such as ``ab/ab12….safetensors``. A name is a digest of the
    content's sha256 and a secret of the cache. An op that must not read the files may be able to
    list their names. Without the secret, the names do not tell it whether the store contains a
    certain tensor."""

    def __init__(
        self,
        folder: Path,
        set_aside: Callable[[Path, str], None],
        index: Callable[[], JsonStore] | None = None,
    ) -> None:
        """`index` gets the places of small blobs, of which many share a file; see `add`."""
        self.folder = folder
        self._files = PrivateFolder(folder.parent)
        self._set_aside = set_aside
        self._salt = b""
        self.written = 0  # bytes that this object has added
        self._folders: set[Path] = set()  # that exist
        self._index = index
        self._waiting: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def _name(self, digest: str) -> str:
        self._salt = self._salt or self._stored_salt() or self._draw_salt()
        return hmac.digest(self._salt, digest.encode(), hashlib.sha256).hex()

    def _stored_salt(self) -> bytes:
        """Return the secret of this cache; empty if there is none."""
        path = self.folder / _SALT
        try:
            found = self._files.read(path, LARGEST)
        except (FileNotFoundError, NotADirectoryError):
            return b""
        if len(found) == _SALT_BYTES:
            return found
        self._set_aside(path, "it is no salt of a cache")
        return b""

    def _draw_salt(self) -> bytes:
        path = self.folder / _SALT
        drawn = path.with_name(f"{_SALT}-{os.getpid()}-{secrets.token_hex(8)}")
        self._files.write(drawn, secrets.token_bytes(_SALT_BYTES))
        with disk_errors(path):
            try:
                os.link(drawn, path, follow_symlinks=False)
            except FileExistsError:
                pass
            except OSError:  # a file system without second names
                drawn.replace(path)
            drawn.unlink(missing_ok=True)
        return self._files.read(path, LARGEST)

    def _is_new(self) -> bool:
        """Tell whether the store has no secret yet, and so no blobs. Unlike `path`, this does not
        generate a secret."""
        try:
            self._salt = self._salt or self._stored_salt()
        except StoreError:
            return True
        return not self._salt

    def path(self, digest: str) -> Path:
        """Return the path of a blob, whether it exists or not. Raises ValueError when `digest` is
        not a sha256 in lower-case hex."""
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"not a sha256: {digest!r}")
        name = self._name(digest)
        return self.folder / name[:2] / (name + SUFFIX)

    def has(self, digest: str) -> bool:
        return digest in self._waiting or self._find(digest) is not None

    def size(self, digest: str) -> int:
        """Return the size of a blob in bytes; 0 if there is none."""
        place = self._find(digest)
        return 0 if place is None else place.size

    def _find(self, digest: str) -> _Place | None:
        """Return where a blob lies: in its own file, or in one with others."""
        own = self._status(digest)
        if own is not None:
            return _Place(digest, 0, own.st_size)
        found = self._index().get(_PLACE + digest) if self._index is not None and digest else None
        try:
            place = convert(found, _Place | None)
        except ValidationError:
            return None
        return None if place is None or self._status(place.file) is None else place

    def _status(self, digest: str) -> os.stat_result | None:
        """Return the status of the file of this name; None if there is none, or it is no file."""
        if not digest or self._is_new():
            return None
        try:
            found = self.path(digest).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found if stat.S_ISREG(found.st_mode) else None

    def delete(self, digest: str) -> None:
        if self._is_new():
            return
        self._files.remove(self.path(digest))

    def read(self, digest: str) -> bytes | None:
        """Return a blob's content; None if it is missing or damaged. Move a damaged file aside."""
        if digest in self._waiting:
            return self._waiting[digest]
        if not self._salt and not self._stored_salt():
            return None
        place = self._find(digest)
        if place is None:
            return None
        path = self.path(place.file)
        try:
            data = self._files.read(path, LARGEST)[place.start : place.start + place.size]
        except FileNotFoundError:
            return None
        if digest_bytes(data) != digest:
            self._set_aside(path, "content does not match its digest")
            return None
        with contextlib.suppress(OSError):
            # Recently used: the collector takes the oldest first.
            os.utime(path, follow_symlinks=False)
        return data

    def write(self, data: bytes) -> str:
        digest = digest_bytes(data)
        if self._status(digest) is None:
            self._write_file(digest, data)
        return digest

    def add(self, data: bytes) -> str:
        """Keep a blob, and return its digest. A small one waits in memory until `flush`."""
        digest = digest_bytes(data)
        if self._index is None or len(data) > _SMALL:
            self._write_file(digest, data)
        else:
            with self._lock:
                self._waiting[digest] = data
            if len(self._waiting) > _MOST_WAITING:
                self.flush()
        return digest

    def flush(self) -> None:
        """Write the small blobs that wait to one file, and their places to the index."""
        with self._lock:
            waiting = dict(self._waiting)
        if not waiting or self._index is None:
            return
        content = b"".join(waiting.values())
        file, start = digest_bytes(content), 0
        self._write_file(file, content)
        rows = []
        for digest, data in waiting.items():
            rows.append((_PLACE + digest, _Place(file, start, len(data))))
            start += len(data)
        self._index().put_many(rows)
        with self._lock:
            for digest in waiting:
                self._waiting.pop(digest, None)

    def _write_file(self, digest: str, data: bytes) -> None:
        staging = self.folder.parent / "staging"
        staged = staging / f"{os.getpid()}-{next(_NUMBERS)}.part"
        with disk_errors(staged):
            try:
                try:
                    descriptor = os.open(staged, _NEW_FILE, 0o600)
                except FileNotFoundError:
                    self._files.make(staging)
                    descriptor = os.open(staged, _NEW_FILE, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                self.publish(staged, digest)
            except BaseException:
                staged.unlink(missing_ok=True)
                raise

    def publish(self, staged: Path, digest: str) -> None:
        path = self.path(digest)
        if path.parent not in self._folders:
            self._files.make(path.parent)
            self._folders.add(path.parent)
        with disk_errors(path):
            self.written += staged.stat().st_size
            try:
                staged.replace(path)
            except FileNotFoundError:  # somebody has cleaned the cache
                self._files.make(path.parent)
                staged.replace(path)

    def collect(self, size_limit: int, keep: Iterable[str] = ()) -> tuple[int, int]:
        """Delete the least recently used blobs until the rest fits."""
        if self.volume() <= size_limit:
            return 0, 0
        kept = set() if self._is_new() else {self._name(digest) for digest in keep}
        files: list[tuple[float, int, Path]] = []
        total = 0
        for path in self._files.list_files(self.folder, SUFFIX, depth=1):
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                total += status.st_size
                if path.stem not in kept:
                    files.append((status.st_mtime, status.st_size, path))
        deleted = freed = 0
        for _, size, path in sorted(files):
            if total - freed <= size_limit:
                break
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                deleted += 1
                freed += size
        return deleted, freed

    def volume(self) -> int:
        return self._files.volume(self.folder, SUFFIX, depth=1)

    def verify(self) -> list[str]:
        """Read all blobs, move the damaged blobs aside, and return their names."""
        return [
            path.stem
            for path in sorted(self._files.list_files(self.folder, SUFFIX, depth=1))
            if not self._is_whole(path)
        ]

    def _is_whole(self, path: Path) -> bool:
        """Tell whether a file's content matches its name; if not, move it aside."""
        try:
            data = self._files.read(path, LARGEST)
        except FileNotFoundError:
            return False
        if self.path(digest_bytes(data)) == path:
            return True
        self._set_aside(path, "content does not match its digest")
        return False


class ForeignRecordError(ValueError):
    """Error of a database record that this program did not write."""


class BytesDisk(Disk):  # type: ignore[misc]  # diskcache has no types
    """A Disk whose keys are str and whose values are bytes; it reads nothing else. diskcache's own
    Disk unpickles values if the database says so, and opens any file that the database names, even
    ``../x``. Anybody who can write to the cache could thus run code in this process. Large values
    stay in the database, too."""

    def put(self, key: object) -> tuple[str, bool]:
        if type(key) is not str:
            raise TypeError("cache keys are str")
        return key, True

    def get(self, key: object, raw: bool) -> str:
        if not raw or type(key) is not str:
            raise ForeignRecordError("key is not a str")
        return key

    def store(self, value: object, read: bool, key: object = UNKNOWN) -> Any:
        if type(value) is not bytes or read:
            raise TypeError("cache values are bytes")
        return 0, MODE_RAW, None, value

    def fetch(self, mode: int, filename: object, value: object, read: bool) -> bytes:
        if mode == MODE_RAW and type(value) is bytes:
            return value
        raise ForeignRecordError("value is not bytes of ours")

    def remove(self, file_path: object) -> None:
        """Do nothing: no value has a file, whatever a database says."""


_IF_OTHER = {
    "INSERT OR REPLACE INTO Settings VALUES (?, ?)": (
        "INSERT OR REPLACE INTO Settings SELECT ?1, ?2"
        " WHERE NOT EXISTS (SELECT 1 FROM Settings WHERE key = ?1 AND value IS ?2)"
    ),
    "UPDATE Settings SET value = ? WHERE key = ?": (
        "UPDATE Settings SET value = ?1 WHERE key = ?2 AND value IS NOT ?1"
    ),
}
"""Maps statements of diskcache to statements that do not write a value that is stored already."""


class SettledCache(Cache):  # type: ignore[misc]  # diskcache has no types
    """A Cache that, when it is opened, stores only those of its settings that have changed.
    diskcache itself stores each setting twice, in a separate transaction each time, and waits until
    the settings are on the disk."""

    @property
    def _sql_retry(self) -> Callable[..., Any]:
        run = super()._sql_retry
        return lambda statement, *values: run(_IF_OTHER.get(statement, statement), *values)


class ReadOnlyCache(Cache):  # type: ignore[misc]  # diskcache has no types
    """A Cache in a folder that nobody may write. diskcache itself begins by making its tables."""

    eviction_policy, statistics = "none", 0

    def __init__(self, directory: str) -> None:
        self._directory, self._disk = directory, BytesDisk(directory)
        self._local, self._txn_id, self._timeout = threading.local(), None, _LOCK_SECONDS
        ((self._page_size,),) = self._sql("PRAGMA page_size")

    @property
    def _con(self) -> Any:
        if not hasattr(self._local, "con"):
            name = os.path.join(self._directory, "cache.db")  # noqa: PTH118
            # Where no log lies beside it, SQLite would make one.
            fixed = "mode=ro" if os.path.exists(f"{name}-wal") else "immutable=1"  # noqa: PTH110
            self._local.con = sqlite3.connect(
                f"file:{quote(name)}?{fixed}", self._timeout, isolation_level=None, uri=True
            )
        return self._local.con


_KEYS_AT_ONCE = 500  # in one statement; SQLite takes 999 in its oldest versions
_INSERT = (
    "INSERT INTO Cache(key, raw, store_time, expire_time, access_time, access_count, tag, size,"
    " mode, filename, value) VALUES (?, 1, ?, NULL, ?, 0, NULL, ?, ?, NULL, ?)"
)


def present(cache: Cache, keys: Sequence[str]) -> set[str]:
    """Return the members of `keys` that have a record, with few SQL statements. In a cache that
    evicts records, `Cache.get` would take a transaction for each key."""
    known: set[str] = set()
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        some = keys[start : start + _KEYS_AT_ONCE]
        marks = ",".join("?" * len(some))
        found = cache._sql(f"SELECT key FROM Cache WHERE raw = 1 AND key IN ({marks})", some)  # noqa: S608
        known.update(key for (key,) in found)
    return known


def records_of(cache: Cache, keys: Sequence[str]) -> dict[str, bytes]:
    """Return the records of those of `keys` that have one which `Cache.get` would return."""
    known: dict[str, bytes] = {}
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        some = keys[start : start + _KEYS_AT_ONCE]
        marks = ",".join("?" * len(some))
        query = f"SELECT key, value, mode FROM Cache WHERE raw = 1 AND key IN ({marks})"  # noqa: S608
        found = cache._sql(query, some)
        known.update((k, v) for k, v, mode in found if mode == MODE_RAW and type(v) is bytes)
    return known


def keys_from(cache: Cache, prefix: str) -> list[str]:
    """Return the keys that begin with `prefix`, which must be ASCII, using the index of keys."""
    after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    found = cache._sql(
        "SELECT key FROM Cache WHERE raw = 1 AND key >= ? AND key < ?", (prefix, after)
    )
    return [key for (key,) in found if type(key) is str]


def keys_holding(cache: Cache, text: str) -> list[str]:
    """Return the keys of the records whose values contain `text`."""
    found = cache._sql("SELECT key FROM Cache WHERE raw = 1 AND instr(value, ?)", (text.encode(),))
    return [key for (key,) in found if type(key) is str]


def delete_all(cache: Cache, keys: Sequence[str]) -> None:
    with cache._transact() as (sql, _):
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[start : start + _KEYS_AT_ONCE]
            marks = ",".join("?" * len(some))
            sql(f"DELETE FROM Cache WHERE raw = 1 AND key IN ({marks})", some)  # noqa: S608


def insert_new(cache: Cache, records: Mapping[str, bytes]) -> dict[str, bytes]:
    """Insert records with new keys, and return all other records. This takes one prepared
    statement, whereas `Cache.set` takes four to seven for each record. Call it in a transaction,
    after `evict_for`."""
    known = present(cache, list(records))
    left = {key: record for key, record in records.items() if key in known}
    now = time.time()
    cache._con.executemany(
        _INSERT,
        [
            (key, now, now, 0, MODE_RAW, record)
            for key, record in records.items()
            if key not in left
        ],
    )
    return left


def evict_for(cache: Cache, count: int) -> None:
    """Evict, in one transaction, as many records as `count` calls of `Cache.set` would."""
    with cache._transact() as (sql, cleanup):
        cache._cull(time.time(), sql, cleanup, limit=count * cache.cull_limit)


_COMPACT = json.JSONEncoder(separators=(",", ":"))
_MAGIC = b"gf1\n"
_ANY_MAGIC = re.compile(rb"gf[0-9]\n")
_CHECK = 16  # bytes of sha256 before the payload: damage, not forgery, is what they must show
_FAILED = "disk i/o error"
_FULL = ("disk is full", _FAILED, "unable to open", "readonly database")
_LOCKED = "database is locked"
_DATABASE_FILES = ("", "-wal", "-shm", "-journal")
# Errors of diskcache on a cell that it did not write, such as a file's name that is not text.
_FOREIGN_CELL = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_LOCK_SECONDS = 30.0
_LONGEST = 512 - len("-journal")  # bytes of a database's path
_ATTEMPTS = 10  # what damages the database may do so again while it is made anew

MAX_SHOWN = 10  # damaged records that are set aside; more are only dropped
_CACHED_PAGES = 500  # of 4 KiB: thousands of records pass through once
T = TypeVar("T")


class OtherFormatError(ValueError):
    """Error of a record that another version of this program wrote."""


def seal(value: Json, key: str = "") -> bytes:
    """Convert a JSON value to a record: magic, checksum, payload."""
    return sealed(to_text(value).encode(), key)


def to_text(value: Json) -> str:
    return _COMPACT.encode(value)


def sealed(payload: bytes, key: str) -> bytes:
    """Do the work of `seal` for a value that is already JSON."""
    return _MAGIC + _checksum(key, payload) + payload


def unseal(record: bytes, key: str = "") -> Json:
    """Convert a record back to its JSON value. Raises ValueError when the record is not one that
    `seal` made for this key. Raises OtherFormatError when another version's `seal` made it."""
    head, check = record[: len(_MAGIC)], record[len(_MAGIC) : len(_MAGIC) + _CHECK]
    payload = memoryview(record)[len(_MAGIC) + _CHECK :]  # no copies of megabytes
    if head != _MAGIC and _ANY_MAGIC.fullmatch(head):
        raise OtherFormatError("of another version")
    if head != _MAGIC or _checksum(key, payload) != check:
        raise ValueError("damaged record")
    return json.loads(str(payload, "utf-8"))


def mark_of(record: bytes) -> str:
    return record[len(_MAGIC) : len(_MAGIC) + _CHECK].hex()


def _checksum(key: str, payload: bytes | memoryview) -> bytes:
    found = hashlib.sha256(key.encode())
    found.update(payload)
    return found.digest()[:_CHECK]


def _behind(error: Exception) -> Exception:
    """Return SQLite's own error, which diskcache may have replaced with its `Timeout`."""
    if isinstance(error, Timeout):
        behind = error.__context__
        return behind if isinstance(behind, sqlite3.Error) else sqlite3.OperationalError(_LOCKED)
    return error


class JsonStore:
    """A key-value store of JSON values, shared between threads and processes. With a `size_limit`,
    the least recently used ones beyond it are evicted."""

    def __init__(
        self, folder: Path, set_aside: Callable[[Path, str], None], *, size_limit: int = 0
    ) -> None:
        self._folder = folder
        self._files = PrivateFolder(folder.parent)
        self._database = folder / "cache.db"
        self._database_name = str(self._database)
        self._set_aside = set_aside
        self._damaged = 0
        self._size_limit = size_limit
        self._lock = threading.Lock()
        self._cache: Cache | None = None
        self._inode: int | None = None
        self._guarded(lambda _: None)

    def _open(self) -> Cache:
        with disk_errors(self._folder):
            self._make_private()
            if not os.access(self._folder, os.W_OK):
                return ReadOnlyCache(str(self._folder))
            return SettledCache(
                str(self._folder),
                disk=BytesDisk,
                timeout=_LOCK_SECONDS,
                size_limit=self._size_limit,
                eviction_policy="least-recently-used" if self._size_limit else "none",
                cull_limit=10 if self._size_limit else 0,
                sqlite_synchronous=1,
                sqlite_cache_size=_CACHED_PAGES,
            )

    def _make_private(self) -> None:
        """Create the database, if there is none, as a file that only this user can read. Raise
        StoreError if one of the database's files is a link, symbolic or hard. SQLite gives its
        auxiliary files the same mode as the database."""
        self._files.make(self._folder)
        # Looked at, not opened: closing a file would drop the locks that SQLite holds on it.
        for suffix in _DATABASE_FILES:
            self._files.check_file(Path(f"{self._database}{suffix}"))
        with contextlib.suppress(FileExistsError):
            os.close(self._files.open(self._database, os.O_RDWR | os.O_CREAT | os.O_EXCL))

    def _opened(self) -> Cache:
        with self._lock:
            if self._cache is not None and self._is_replaced():
                self._drop()
            if self._cache is None:
                self._cache = self._open()
                self._inode = self._inode_now()
            return self._cache

    def _inode_now(self) -> int | None:
        try:
            return os.stat(self._database_name).st_ino  # noqa: PTH116 - at each request
        except OSError:
            return None

    def _is_replaced(self) -> bool:
        """Tell whether another process has moved the database aside. SQLite would not notice."""
        return self._inode != self._inode_now()

    def _drop(self) -> None:
        with contextlib.suppress(Exception):
            self._cache and self._cache.close()
        self._cache = None

    def _guarded(self, action: Callable[[Cache], T]) -> T:
        """Run `action`; if the database is damaged, move it aside and retry with a new database.
        `action` must do nothing but use the database, since its TypeError or ValueError counts as a
        sign of damaged content. Raises ForeignRecordError when a record was not written by this
        program; other records are not affected. Raises StoreError: ``cache-disk-full``,
        ``cache-not-writable``, or ``cache- busy`` when the database stays locked or is damaged
        again and again."""
        doubted: int | None = None
        for left in reversed(range(_ATTEMPTS)):
            cache = None
            try:
                cache = self._opened()
                return action(cache)
            except ForeignRecordError:
                raise
            except (sqlite3.DatabaseError, Timeout, *_FOREIGN_CELL) as error:
                met = self._inode_now()
                true = _behind(error)
                self._start_afresh(cache, true, last=not left, damaged=met == doubted)
                doubted = met
        raise self._busy("is damaged by another program again and again")

    def _busy(self, reason: str) -> StoreError:
        return StoreError(Problem("cache-busy", f"{self._folder} {reason}", "end the other run"))

    def _start_afresh(
        self, cache: Cache | None, error: Exception, *, last: bool, damaged: bool
    ) -> None:
        """Close the database after an error, so that the next attempt opens it again. Raises
        StoreError: The database is locked, or cannot be written."""
        text = str(error).lower()
        if _LOCKED in text:
            raise self._busy("stayed locked") from error
        with self._lock:
            if self._cache is not cache:
                return  # another thread met the same damage and dealt with it
            if cache is None or not self._is_replaced():
                # Who closes a database that was moved away deletes files of the one in its place:
                # that is over once it is opened again.
                unwritable = any(sign in text for sign in _FULL)
                if unwritable and (last or "full" in text):
                    raise StoreError(self._unwritable(text)) from error
                if not unwritable and damaged:
                    self._set_aside(self._folder, f"damaged database: {error}")
            self._drop()

    def _unwritable(self, text: str) -> Problem:
        """Return the problem to report for SQLite's message that writing failed."""
        if _FAILED in text:  # Python 3.10 passes no number of the error on
            return io_problem(self._folder, text)
        if "unable to open" in text and len(os.fsencode(self._database_name)) > _LONGEST:
            length = len(os.fsencode(self._database_name))
            reason = f"its path has {length} bytes, and SQLite opens none of more than {_LONGEST}"
            hint = "set [cache] dir to a folder with a shorter path"
            return Problem("cache-not-writable", f"cannot open {self._database}: {reason}", hint)
        full = "full" in text
        fix = "free some space" if full else "check the owner and the mode of the cache folder"
        return Problem(
            "cache-disk-full" if full else "cache-not-writable",
            f"cannot write {self._folder}: {text}",
            f"{fix}; what was finished is kept",
        )

    def get(self, key: str) -> Json | None:
        """Return the value of a key; None if there is none or it is damaged. A damaged record is
        moved aside."""
        record: bytes | None = None
        try:
            record = self._guarded(lambda cache: cache.get(key))
            return None if record is None else unseal(record, key)
        except OtherFormatError:
            return None
        except (ForeignRecordError, ValueError) as error:
            self._keep_damaged(key, record, error)
            self.delete(key)
            return None

    def get_many(self, keys: Sequence[str]) -> dict[str, Json]:
        """Return the values of those of `keys` that have one, with few statements; None for one
        that is damaged. The store must evict nothing, as the time of use is not noted."""
        found: dict[str, Json] = {}
        for key, record in self._guarded(lambda cache: records_of(cache, keys)).items():
            try:
                found[key] = unseal(record, key)
            except ValueError:
                found[key] = self.get(key)  # which sets aside what is damaged
        return found

    def among(self, keys: Sequence[str]) -> set[str]:
        """Return the members of `keys` that have a record, even a damaged one."""
        return self._guarded(lambda cache: present(cache, keys))

    def _keep_damaged(self, key: str, record: bytes | None, error: Exception) -> None:
        """Move a damaged record to the quarantine, which keeps a few records for inspection."""
        self._damaged += 1
        if self._damaged > MAX_SHOWN:
            return
        name = hashlib.sha256(key.encode()).hexdigest()[:16]
        path = self._folder / f"record-{name}"
        with contextlib.suppress(OSError):
            self._files.write(path, record or b"")
            self._set_aside(path, f"damaged record {key[:80]!r}: {error}")

    def put(self, key: str, value: Json) -> None:
        """Store a value; when this returns, other processes can read it."""
        record = seal(value, key)
        self._guarded(lambda cache: cache.set(key, record))

    def put_many(self, items: Iterable[tuple[str, object]]) -> None:
        """Store several values that `encoded` takes in one transaction; for a repeated key, store
        the last value."""
        self.put_sealed({key: sealed(encoded(value), key) for key, value in items})

    def put_sealed(self, records: Mapping[str, bytes]) -> None:
        """Store records that `sealed` made, in one transaction."""

        def write(cache: Cache) -> None:
            with cache.transact():
                if self._size_limit:
                    evict_for(cache, len(records))
                for key, record in insert_new(cache, records).items():
                    cache.set(key, record)

        self._guarded(write)

    def delete(self, key: str) -> None:
        self._guarded(lambda cache: cache.delete(key))

    def delete_many(self, keys: Sequence[str]) -> None:
        self._guarded(lambda cache: delete_all(cache, keys))

    def __iter__(self) -> Iterator[str]:
        def keys(cache: Cache) -> list[str]:
            found: list[str] = []
            with contextlib.suppress(ForeignRecordError):
                found.extend(cache.iterkeys())
            return found

        return iter(self._guarded(keys))

    def keys_from(self, prefix: str) -> list[str]:
        return self._guarded(lambda cache: keys_from(cache, prefix))

    def keys_holding(self, text: str) -> list[str]:
        """Return the keys of records that may hold `text` in their JSON; no record is parsed."""
        return self._guarded(lambda cache: keys_holding(cache, text))

    def volume(self) -> int:
        """Return the estimated size on disk in bytes."""
        return self._guarded(lambda cache: int(cache.volume()))

    def sql(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Run SQL on tables beside the records; `action` may be called again after an error."""
        return self._guarded(lambda cache: action(cache._con))

    def close(self) -> None:
        with self._lock:
            if self._cache is not None:
                self._cache.close()


_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# This folder is gpuemu-flow's cache; it can be deleted at any time.\n"
    b"# See https://bford.info/cachedir/ for what this file tells backup programs.\n"
)
_VOLUME = "volume of blobs"
DEFAULT_ACTIONS_LIMIT = 512 * 1024 * 1024


def damaged(message: str, path: Path) -> Problem:
    return Problem("cache-damaged", message, file=str(path), warning=True)


def artifact_path(folder: Path, kernel: str, arch: str, kind: str) -> Path:
    """Return where a cache keeps a kernel's compiled code; `kind` is ``ptx`` or ``cubin``."""
    name = quote(kernel, safe="") + (f"@{arch}" if arch else "")
    return folder / "artifacts" / f"{name}.{kind}"


class WorkspaceCache:
    """Paths and stores below ``.gpuemu-cache``."""

    def __init__(self, folder: Path, *, actions_limit: int = DEFAULT_ACTIONS_LIMIT) -> None:
        self.folder = folder
        self.files = PrivateFolder(folder)
        self.problems: list[Problem] = []
        self.lost: set[str] = set()  # tasks whose stored results proved to be damaged
        self._actions_limit = actions_limit

    def create(self) -> None:
        """Make the folder with its .gitignore and CACHEDIR.TAG, if it does not exist. Raises
        StoreError: The folder cannot be made, or is not writable."""
        self.files.make(self.folder)
        for name, content in ((".gitignore", b"*\n!.gitignore\n"), ("CACHEDIR.TAG", _TAG)):
            if not os.path.lexists(self.folder / name):
                self.files.write(self.folder / name, content)

    @property
    def lock_path(self) -> Path:
        return self.folder / "lock"

    @property
    def staging(self) -> Path:
        """Return the folder for files being written, on the same file system as the blobs."""
        path = self.folder / "staging"
        self.files.make(path)
        return path

    def keep_references(self, references: Collection[str]) -> str:
        """Write down the references of all ops, for the sandboxes of other ops. Return the file's
        path; empty if it cannot be written, as in a workspace that is read only."""
        listed = os.fsencode("\0".join(sorted(references)))
        path = self.folder / f"references-{digest_bytes(listed)[:16]}"
        try:
            if not path.is_file():
                self.create()
                self.files.write(path, listed)
        except StoreError:
            return ""
        return str(path)

    def log_path(self, task: str) -> Path:
        return self.folder / "logs" / f"{quote(task, safe='')}.log"

    @cached_property
    def state(self) -> JsonStore:
        """Return the store of task states, which are never evicted."""
        return JsonStore(self.folder / "state", self.set_aside)

    @cached_property
    def actions(self) -> JsonStore:
        """Return the action cache: results by action key. Least recently used ones are evicted."""
        return JsonStore(self.folder / "actions", self.set_aside, size_limit=self._actions_limit)

    @cached_property
    def failures_db(self) -> JsonStore:
        """Return the store of failure records, which are never evicted; see `store.failures`."""
        return JsonStore(self.folder / "failures", self.set_aside)

    @cached_property
    def blobs(self) -> BlobStore:
        """Return the store of tensor files, named by content."""
        return BlobStore(self.folder / "blobs", self.set_aside, lambda: self.actions)

    def limit_blobs(self, limit: int, keep: Callable[[], Iterable[str]]) -> None:
        """Delete the least recently used blobs if they are larger than `limit` together. To measure
        them takes as long as a small run, so only what was added is counted until the sum reaches
        the limit. What other commands add is measured then."""
        known = self.state.get(_VOLUME)
        added = self.blobs.written
        volume = known + added if isinstance(known, int) else self.blobs.volume()
        if volume > limit:
            self.blobs.collect(limit, keep())
            volume = self.blobs.volume()
        self.state.put(_VOLUME, volume)

    def set_aside(self, path: Path, reason: str) -> None:
        """Move a damaged `path` to ``quarantine/``, and record the reason."""
        quarantine = self.folder / "quarantine"
        with contextlib.suppress(OSError):
            self.files.check(path.parent)
            self.files.make(quarantine)
            for n in itertools.count(1):
                target = quarantine / f"{path.name}.{n}"
                if not os.path.lexists(target):
                    path.rename(target)
                    break
        shown = (
            path.relative_to(self.folder.parent)
            if path.is_relative_to(self.folder.parent)
            else path
        )
        self.problems.append(damaged(f"{reason}; set aside and made again when needed", shown))

    def clear_staging(self) -> None:
        """Delete unfinished files of killed runs. Call this only while holding the run lock."""
        staging = self.folder / "staging"
        with contextlib.suppress(FileNotFoundError):
            self.files.check(staging)
            for entry in os.scandir(staging):
                self.files.remove_tree(Path(entry.path))

    def close(self) -> None:
        for name in ("state", "actions", "failures_db"):
            store = self.__dict__.get(name)
            if isinstance(store, JsonStore):
                store.close()


# The user's own cache folder, for results computed outside of any workspace.


LIMIT = 64 << 20
"""Largest size of the cached results in bytes; the least recently used ones are dropped first."""


def open_user_cache() -> WorkspaceCache | None:
    """Return the user's cache; None if it is not writable, which is no error."""
    try:
        cache = WorkspaceCache(user_cache_folder(os.environ), actions_limit=LIMIT)
        cache.create()
        _ = cache.actions  # opens it
        return cache if os.access(cache.folder / "actions", os.W_OK) else None
    except (StoreError, OSError, RuntimeError):  # RuntimeError: no home folder
        return None
