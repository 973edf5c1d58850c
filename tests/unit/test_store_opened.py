"""A store that is opened again: nothing is written, unless a setting has another value."""

from __future__ import annotations

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from diskcache import Cache

from gpuemu_flow.model.errors import StoreError
from gpuemu_flow.store.cache import JsonStore, SettledCache


def opened(folder: Path, size_limit: int) -> JsonStore:
    return JsonStore(folder, _refuse, size_limit=size_limit)


def _refuse(path: Path, reason: str) -> None:
    raise AssertionError(f"{path} was set aside: {reason}")


def database(folder: Path) -> tuple[bytes, int]:
    """Return the content of the database and its time of change."""
    path = folder / "cache.db"
    return path.read_bytes(), path.stat().st_mtime_ns


def settings(folder: Path) -> dict[str, object]:
    with closing(sqlite3.connect(folder / "cache.db")) as connection:
        return dict(connection.execute("SELECT key, value FROM Settings"))


@pytest.mark.parametrize("closed", [True, False])
def test_what_may_not_be_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    store = opened(tmp_path / "actions", 1 << 30)
    store.put_many([("a", {"n": 1}), ("b", [2])])
    if closed:
        store.close()
    monkeypatch.setattr(os, "access", lambda *_: False)
    before = database(tmp_path / "actions")
    reader = opened(tmp_path / "actions", 1 << 30)
    for _ in range(2):
        assert (reader.get("a"), reader.get("c")) == ({"n": 1}, None)
        assert reader.get_many(["a", "b"]) == {"a": {"n": 1}, "b": [2]}
        assert (list(reader), reader.keys_from("b"), reader.volume() > 0) == (
            ["a", "b"],
            ["b"],
            True,
        )
        with ThreadPoolExecutor(1) as other:
            assert other.submit(reader.get, "b").result() == [2]
        with pytest.raises(StoreError, match="cache-not-writable"):
            reader.put("a", 2)
    reader.close()
    assert database(tmp_path / "actions") == before
    store.close()


@pytest.mark.parametrize("limit", [1 << 30, 0])
def test_it_writes_nothing(tmp_path: Path, limit: int) -> None:
    folder = tmp_path / "actions"
    store = opened(folder, limit)
    store.put("key", {"a": 1})
    store.close()
    before = database(folder)
    store = opened(folder, limit)
    assert (folder / "cache.db-wal").stat().st_size == 0, "nothing waits to be written"
    store.close()
    assert database(folder) == before
    store = opened(folder, limit)
    assert store.get("key") == {"a": 1}
    store.close()


def test_a_setting_with_another_value_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "actions"
    for size in (1 << 30, 1 << 20, 0):
        opened(folder, size).close()
        found = settings(folder)
        assert found["size_limit"] == size
        assert found["eviction_policy"] == ("least-recently-used" if size else "none")


def test_its_settings_are_those_that_diskcache_writes(tmp_path: Path) -> None:
    """Also in a database that lacks one, or holds one with a value of another type."""
    for kind in (Cache, SettledCache):
        folder = tmp_path / kind.__name__
        for _ in range(2):
            kind(str(folder), size_limit=77, sqlite_synchronous=1).close()
        with closing(sqlite3.connect(folder / "cache.db")) as connection, connection:
            connection.execute("DELETE FROM Settings WHERE key = 'cull_limit'")
            connection.execute("UPDATE Settings SET value = '77' WHERE key = 'size_limit'")
            connection.execute("UPDATE Settings SET value = NULL WHERE key = 'statistics'")
        made = kind(str(folder), size_limit=77, sqlite_synchronous=1)
        assert (made.size_limit, made.cull_limit, made.statistics) == (77, 10, None)
        made.close()
    found = settings(tmp_path / "SettledCache")
    assert found == settings(tmp_path / "Cache")
    assert (found["size_limit"], found["cull_limit"]) == (77, 10)
