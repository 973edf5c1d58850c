"""Caches of an older and a newer version: used for nothing, called damaged never, kept for it."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stored_snapshot
from mini_workspace import Mini
from test_run_damage import verdicts
from whole import sample

from gpuemu_flow.model.types import Json, Verdict
from gpuemu_flow.store.cache import WorkspaceCache, seal, unseal
from gpuemu_flow.store.results import CountedResult, NewResult, ResultStore

CAUSES = False


def _sealed(path: Path, change: Callable[[Any], Json]) -> None:
    path.write_bytes(seal(change(unseal(path.read_bytes()))))


def _progress(cache: Path, change: Callable[[Any], Json]) -> None:
    stored_snapshot.rewrite(Mini(cache.parent), "progress", change)


def _graph(cache: Path, number: int) -> None:
    _progress(cache, lambda old: {"format": number, "tool": old["tool"], "more": []})


def _of_another_tool(cache: Path, number: int) -> None:
    _progress(cache, lambda old: {**old, "tool": f"{number}.0", "settings": {}})


def _records(database: str, change: Callable[[str, bytes], bytes]) -> Callable[[Path, int], None]:
    def apply(cache: Path, _number: int) -> None:
        with contextlib.closing(sqlite3.connect(cache / database / "cache.db")) as connection:
            rows = connection.execute("select rowid, key, value from Cache").fetchall()
            for rowid, key, value in rows:
                new = change(key, value)
                connection.execute("update Cache set value = ? where rowid = ?", (new, rowid))
            connection.commit()

    return apply


def _other_fields(key: str, record: bytes) -> bytes:
    data = unseal(record, key)
    return seal({"version": 99, "all": data} if isinstance(data, dict) else {"version": 99}, key)


def _other_seal(_key: str, record: bytes) -> bytes:
    return b"gf7\n" + record[4:]


WAYS: dict[str, Callable[[Path, int], None]] = {
    "graph": _graph,
    "tool": _of_another_tool,
    "states": _records("state", _other_fields),
    "actions": _records("actions", _other_fields),
    "sealed states": _records("state", _other_seal),
    "sealed actions": _records("actions", _other_seal),
}


PAIRS = list(itertools.product(WAYS, (0, 99)))


@pytest.mark.parametrize(
    ("name", "number"), sample(PAIRS, 3, lambda pair: pair[0], lambda pair: pair[1])
)
def test_another_version_s_cache_is_no_damage(checked_mini: Mini, name: str, number: int) -> None:
    cache = checked_mini.root / ".gpuemu-cache"
    expected = verdicts(checked_mini.run("scale"))
    WAYS[name](cache, number)
    if "actions" in name:
        checked_mini.command("clean", "scale")
    report = checked_mini.run("scale")
    assert verdicts(report) == expected
    assert report["problems"] == []
    assert not (cache / "quarantine").exists()


@pytest.mark.parametrize("way", ["format", "seal"])
def test_baselines_of_another_version_stay(checked_mini: Mini, way: str) -> None:
    checked_mini.command("baseline", "store", "kept")
    (path,) = (checked_mini.root / ".gpuemu-cache" / "baselines").glob("*.baseline")
    if way == "format":
        _sealed(path, lambda old: {**old, "format": 99})
    else:
        path.write_bytes(_other_seal("", path.read_bytes()))
    stored = path.read_bytes()
    assert "kept" not in checked_mini.command("baseline", "list").stdout
    for words in (("diff", "kept"), ("baseline", "show", "kept"), ("baseline", "delete", "kept")):
        assert "another version" in checked_mini.command(*words, code=2).stderr
    assert path.read_bytes() == stored
    assert not (checked_mini.root / ".gpuemu-cache" / "quarantine").exists()


def test_submissions_of_another_version_stay(tmp_path: Path) -> None:
    """Looking at a workspace with an older version must not delete what a newer one was told."""
    cache = WorkspaceCache(tmp_path / ".gpuemu-cache")
    store = ResultStore(cache)
    judged = CountedResult(Verdict.PASSED)
    ours = store.add(NewResult("op", 1, "float32", judged, {}, source="submit"))
    theirs = {"op": {"name": "op"}, "seed": 2, "judged": "well"}
    key = f"{ours.time_ns + 1:020d}"
    store._records.put(key, theirs)
    again = ResultStore(WorkspaceCache(cache.folder))
    assert [found.seed for found in again.newest(10)] == [1]
    assert again._records.get(key) == theirs
