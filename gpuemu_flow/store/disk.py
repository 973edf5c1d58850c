"""A safe `diskcache.Disk`, and a `Cache` to use it.

The disk never unpickles data, and never accesses a file outside its folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from diskcache import Cache, Disk
from diskcache.core import MODE_RAW, UNKNOWN


class ForeignRecordError(ValueError):
    """Error of a database record that this program did not write."""


class BytesDisk(Disk):  # type: ignore[misc]  # diskcache has no types
    """A Disk whose keys are str and whose values are bytes; it reads nothing else.

    diskcache's own Disk unpickles values if the database says so, and opens any file that the
    database names, even ``../x``. Anybody who can write to the cache could thus run code in this
    process. Large values stay in the database, too.
    """

    def put(self, key: object) -> tuple[str, bool]:
        """Convert a key to its database form."""
        if type(key) is not str:
            raise TypeError("cache keys are str")
        return key, True

    def get(self, key: object, raw: bool) -> str:
        """Convert a key back from its database form."""
        if not raw or type(key) is not str:
            raise ForeignRecordError("key is not a str")
        return key

    def store(self, value: object, read: bool, key: object = UNKNOWN) -> Any:
        """Return the database columns of a value: size, mode, file name and content."""
        if type(value) is not bytes or read:
            raise TypeError("cache values are bytes")
        return 0, MODE_RAW, None, value

    def fetch(self, mode: int, filename: object, value: object, read: bool) -> bytes:
        """Convert a value back from its database form."""
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
    the settings are on the disk.
    """

    @property
    def _sql_retry(self) -> Callable[..., Any]:
        run = super()._sql_retry
        return lambda statement, *values: run(_IF_OTHER.get(statement, statement), *values)


_KEYS_AT_ONCE = 500  # in one statement; SQLite takes 999 in its oldest versions
_INSERT = (
    "INSERT INTO Cache(key, raw, store_time, expire_time, access_time, access_count, tag, size,"
    " mode, filename, value) VALUES (?, 1, ?, NULL, ?, 0, NULL, ?, ?, NULL, ?)"
)


def present(cache: Cache, keys: Sequence[str]) -> set[str]:
    """Return the members of `keys` that have a record, with few SQL statements.

    In a cache that evicts records, `Cache.get` would take a transaction for each key.
    """
    known: set[str] = set()
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        some = keys[start : start + _KEYS_AT_ONCE]
        marks = ",".join("?" * len(some))
        found = cache._sql(f"SELECT key FROM Cache WHERE raw = 1 AND key IN ({marks})", some)  # noqa: S608
        known.update(key for (key,) in found)
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
    """Delete records in one transaction, with few SQL statements."""
    with cache._transact() as (sql, _):
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[start : start + _KEYS_AT_ONCE]
            marks = ",".join("?" * len(some))
            sql(f"DELETE FROM Cache WHERE raw = 1 AND key IN ({marks})", some)  # noqa: S608


def insert_new(
    cache: Cache, records: Mapping[str, bytes], if_absent: Collection[str] = ()
) -> dict[str, bytes]:
    """Insert records with new keys, and return all other records.

    This takes one prepared statement, whereas `Cache.set` takes four to seven for each record. Call
    it in a transaction, after `evict_for`.
    """
    known = present(cache, list(records))
    done = known.intersection(if_absent)
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
    return {key: record for key, record in left.items() if key not in done} if done else left


def evict_for(cache: Cache, count: int) -> None:
    """Evict, in one transaction, as many records as `count` calls of `Cache.set` would."""
    with cache._transact() as (sql, cleanup):
        cache._cull(time.time(), sql, cleanup, limit=count * cache.cull_limit)
