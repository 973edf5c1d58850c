"""Databases that are opened quickly are what diskcache would have made of them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from diskcache import Cache

from gpuemu_flow.store.disk import BytesDisk
from gpuemu_flow.store.quick_cache import QuickCache

SETTINGS = {"size_limit": 1 << 30, "cull_limit": 10, "sqlite_synchronous": 1}
POLICIES = ("none", "least-recently-used")


def quick(folder: Path, policy: str) -> QuickCache:
    folder.mkdir(exist_ok=True)
    (folder / "cache.db").touch()
    return QuickCache(str(folder), 5.0, eviction_policy=policy, **SETTINGS)


def plain(folder: Path, policy: str) -> Cache:
    return Cache(str(folder), 5.0, BytesDisk, eviction_policy=policy, **SETTINGS)


def content(folder: Path) -> tuple[set[object], dict[str, object], list[object]]:
    """The schema, the settings and the pragmas that a file keeps."""
    with sqlite3.connect(folder / "cache.db") as database:
        schema = set(database.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))
        settings = dict(database.execute("SELECT key, value FROM Settings").fetchall())
        kept = ("auto_vacuum", "journal_mode", "page_size")
        return schema, settings, [database.execute(f"PRAGMA {p}").fetchone() for p in kept]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_new_database_is_what_diskcache_makes(tmp_path: Path, policy: str) -> None:
    quick(tmp_path / "ours", policy).close()
    plain(tmp_path / "theirs", policy).close()
    assert content(tmp_path / "ours") == content(tmp_path / "theirs")


@pytest.mark.parametrize("policy", POLICIES)
def test_what_one_wrote_the_other_reads(tmp_path: Path, policy: str) -> None:
    """With the same attributes and pragmas of the connection, whoever opened it."""
    folder = tmp_path / "cache"
    ours = quick(folder, policy)
    ours["one"] = b"1"
    theirs = plain(folder, policy)
    theirs["two"] = b"2" * 100_000
    again = quick(folder, policy)
    assert (again["one"], again["two"], len(again)) == (b"1", b"2" * 100_000, 2)
    assert again.volume() == theirs.volume()
    for name in ("timeout", "cull_limit", "eviction_policy", "statistics", "disk_min_file_size"):
        assert getattr(again, name) == getattr(theirs, name), name
    for pragma in ("busy_timeout", "synchronous", "cache_size", "mmap_size", "journal_mode"):
        values = [cache._sql(f"PRAGMA {pragma}").fetchone() for cache in (again, theirs)]
        assert values[0] == values[1], pragma
    for cache in (ours, theirs, again):
        cache.close()


def test_a_sound_database_is_not_written_to(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with quick(folder, "none") as cache:
        cache["one"] = b"1"
    before = (folder / "cache.db").read_bytes()
    with sqlite3.connect(folder / "cache.db") as other:
        other.execute("PRAGMA journal_mode = wal")
        version = other.execute("PRAGMA data_version").fetchone()
        quick(folder, "none").close()
        assert other.execute("PRAGMA data_version").fetchone() == version
    assert (folder / "cache.db").read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TRIGGER Settings_size_insert",
        "DROP INDEX Cache_key_raw",
        "UPDATE Settings SET value = 7 WHERE key = 'size_limit'",
        "DELETE FROM Settings WHERE key = 'count'",
        "UPDATE Settings SET value = 'many' WHERE key = 'hits'",
        "CREATE INDEX Cache_tag_rowid ON Cache(tag, rowid)",
        "DROP TABLE Cache",
    ],
)
def test_any_other_database_is_left_to_diskcache(tmp_path: Path, damage: str) -> None:
    folders = tmp_path / "ours", tmp_path / "theirs"
    for folder in folders:
        quick(folder, "none").close()
        with sqlite3.connect(folder / "cache.db") as database:
            database.execute(damage)
    quick(folders[0], "none").close()
    plain(folders[1], "none").close()
    assert content(folders[0]) == content(folders[1])


def test_a_change_of_a_setting_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    quick(folder, "none").close()
    QuickCache(str(folder), 5.0, **{**SETTINGS, "cull_limit": 3}, eviction_policy="none").close()
    assert content(folder)[1]["cull_limit"] == 3
