"""A diskcache that opens in a tenth of the time: a sound database is read, not written to."""

from __future__ import annotations

import os
import threading
from typing import Any

import diskcache
from diskcache import Cache
from diskcache.core import DBNAME, DEFAULT_SETTINGS, EVICTION_POLICY, METADATA

from gpuemu_flow.store.disk import BytesDisk

_KNOWN = diskcache.__version__.startswith("5.6.")
_METADATA = dict.fromkeys(("count", "size", "hits", "misses"), 0)
_TABLES = (
    "CREATE TABLE Settings ( key TEXT NOT NULL UNIQUE, value)",
    "CREATE TABLE Cache ("
    " rowid INTEGER PRIMARY KEY,"
    " key BLOB,"
    " raw INTEGER,"
    " store_time REAL,"
    " expire_time REAL,"
    " access_time REAL,"
    " access_count INTEGER DEFAULT 0,"
    " tag BLOB,"
    " size INTEGER DEFAULT 0,"
    " mode INTEGER DEFAULT 0,"
    " filename TEXT,"
    " value BLOB)",
    "CREATE UNIQUE INDEX Cache_key_raw ON Cache(key, raw)",
    "CREATE INDEX Cache_expire_time ON Cache (expire_time)",
)
_COUNTING = (
    ("count_insert", "INSERT", 'value + 1 WHERE key = "count"'),
    ("count_delete", "DELETE", 'value - 1 WHERE key = "count"'),
    ("size_insert", "INSERT", 'value + NEW.size WHERE key = "size"'),
    ("size_update", "UPDATE", 'value + NEW.size - OLD.size WHERE key = "size"'),
    ("size_delete", "DELETE", 'value - OLD.size WHERE key = "size"'),
)
_TRIGGERS = tuple(
    f"CREATE TRIGGER Settings_{name} AFTER {event} ON Cache "  # noqa: S608 - of the words above
    f"FOR EACH ROW BEGIN UPDATE Settings SET value = {change}; END"
    for name, event, change in _COUNTING
)
_ENTRIES = {
    ("table", "Settings"),
    ("table", "Cache"),
    ("index", "Cache_key_raw"),
    ("index", "Cache_expire_time"),
    *(("trigger", f"Settings_{name}") for name, _, _ in _COUNTING),
}
_OF_POLICY = {"least-recently-used": {("index", "Cache_access_time")}, "none": set()}
_OF_TAGS = ("index", "Cache_tag_rowid")


class QuickCache(Cache):  # type: ignore[misc]
    """A cache of bytes by str keys.

    diskcache writes all settings anew, one transaction each, whenever it opens a database. Here a
    database is opened as it is if it holds what diskcache would write, and made in one
    transaction if its file is empty. Whatever else there is, diskcache deals with.

    Parameters
    ----------
    directory : str
        An existing folder that holds the database's file, maybe an empty one.
    timeout : float
        Seconds that a lock is waited for.
    **settings : object
        Of `diskcache.Cache`.
    """

    def __init__(self, directory: str, timeout: float, **settings: Any) -> None:
        if not (_KNOWN and self._open_quickly(directory, timeout, settings)):
            super().__init__(directory, disk=BytesDisk, timeout=timeout, **settings)

    def _open_quickly(self, directory: str, timeout: float, settings: dict[str, Any]) -> bool:
        wanted = {**DEFAULT_SETTINGS, **settings}
        self._directory, self._timeout, self._txn_id = directory, 0.0, None
        self._local = threading.local()
        try:
            if os.path.getsize(os.path.join(directory, DBNAME)) == 0:  # noqa: PTH118, PTH202
                self._make(wanted)
            if not self._is_sound(wanted):
                self.close()
                return False
            self._disk = BytesDisk(
                directory,
                min_file_size=wanted["disk_min_file_size"],
                pickle_protocol=wanted["disk_pickle_protocol"],
            )
            ((self._page_size,),) = self._sql("PRAGMA page_size").fetchall()
            self._sql(f"PRAGMA busy_timeout = {int(timeout * 1000)}")
        except Exception:  # diskcache meets it again, and raises what it always does
            self.close()
            return False
        self._timeout = timeout
        for name, value in (*wanted.items(), *_METADATA.items()):
            setattr(self, name, value)
        return True

    def _make(self, wanted: dict[str, Any]) -> None:
        """Make an empty database as diskcache does, but in one transaction."""
        for name, value in sorted(wanted.items()):
            if name.startswith("sqlite_"):
                self.reset(name, value, update=False)
        sql = self._sql
        sql("BEGIN IMMEDIATE")
        index = EVICTION_POLICY[wanted["eviction_policy"]]["init"]
        for statement in (*_TABLES, *filter(None, [index]), *_TRIGGERS):
            sql(statement)
        for row in (*wanted.items(), *METADATA.items()):
            sql("INSERT INTO Settings VALUES (?, ?)", row)
        sql("COMMIT")

    def _is_sound(self, wanted: dict[str, Any]) -> bool:
        """Tell whether the database is what diskcache would make of it."""
        entries = set(self._sql("SELECT type, name FROM sqlite_master").fetchall())
        there = dict(self._sql("SELECT key, value FROM Settings").fetchall())
        return (
            entries >= _ENTRIES | _OF_POLICY[wanted["eviction_policy"]]
            and _OF_TAGS not in entries
            and {name: there.get(name) for name in wanted} == wanted
            and all(type(there.get(name)) is int for name in _METADATA)
        )
