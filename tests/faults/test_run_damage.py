"""Damage in each kind of cache file: noticed, moved away where it is a file, made again."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import stored_snapshot
from mini_workspace import Mini

CAUSES = False


def verdicts(report: dict[str, Any]) -> list[tuple[Any, ...]]:
    names = ("op", "dtype", "verdict", "cases", "max_abs", "max_ulp", "tolerance_used")
    return [tuple(result[name] for name in names) for result in report["results"]]


def cache_of(mini: Mini) -> Path:
    return mini.root / ".gpuemu-cache"


def flip(path: Path, position: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if position is None else position] ^= 1
    path.write_bytes(data)


def checkpoint(database: Path) -> None:
    """Everything into the database itself."""
    connection = sqlite3.connect(database)
    connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()


def flipped(content: bytes) -> bytes:
    data = bytearray(content)
    data[len(data) // 2] ^= 1
    return bytes(data)


def test_changed_results_are_set_aside_and_made_again(mini: Mini) -> None:
    undisturbed = verdicts(mini.run("scale"))
    sound = stored_snapshot.results(mini)
    assert len(sound) == 4
    for task in (*sound, "diff:scale"):
        stored_snapshot.damage(mini, task, flipped)
    mini.edit("scripts/scale.py", "* 3)", "* 3 + 0)")
    report = mini.run("scale")
    assert verdicts(report) == undisturbed
    damaged = [p for p in report["problems"] if p["slug"] == "cache-damaged"]
    assert len(damaged) == 4, "that of op was made anew before anything could read it"
    assert stored_snapshot.results(mini) == sound
    again = mini.run("scale")
    assert (again["problems"], again["executed"]) == ([], [])


@pytest.mark.parametrize("stage", ["generate", "op", "reference", "compare"])
def test_a_result_damaged_in_place_is_made_again(mini: Mini, stage: str) -> None:
    """Without an edit, only those are read that the report needs."""
    undisturbed = verdicts(mini.run())
    sound = stored_snapshot.results(mini)
    stored_snapshot.damage(mini, f"{stage}:total:float32", flipped)
    mini.edit("scripts/scale.py", "* 3)", "* 3 + 0)")
    report = mini.run()
    assert verdicts(report) == undisturbed
    told = [p["slug"] for p in report["problems"]]
    assert told == (["cache-damaged"] if stage == "compare" else [])
    mini.edit("gpuemu.toml", "cases = 4", 'cases = 4\nnan_policy = "strict"')
    assert verdicts(mini.run()) == undisturbed
    assert stored_snapshot.results(mini) == sound
    assert mini.run()["problems"] == []


def test_a_damaged_history_makes_no_regression(mini: Mini) -> None:
    """``diff`` compares with its own last result, where one word may be damaged."""
    mini.run("total")
    passed, failed = b'"verdict":"passed"', b'"verdict":"failed"'
    stored_snapshot.damage(mini, "diff:total", lambda data: data.replace(passed, failed))
    mini.edit("gpuemu.toml", "seed = 42", "seed = 43")
    report = mini.run("total")
    assert report["changes"] == []
    assert "cache-damaged" in {p["slug"] for p in report["problems"]}


@pytest.mark.parametrize("database", ["state", "actions"])
def test_a_damaged_database_is_set_aside(mini: Mini, database: str) -> None:
    undisturbed = verdicts(mini.run("scale"))
    path = cache_of(mini) / database / "cache.db"
    checkpoint(path)
    flip(path, 0)
    if database == "actions":
        stored_snapshot.lose(mini)  # else nothing of it need be read
    mini.command("clean", "scale")
    report = mini.run("scale")
    assert verdicts(report) == undisturbed
    quarantined = [p.name for p in (cache_of(mini) / "quarantine").iterdir()]
    assert [name.rpartition(".")[0] for name in quarantined] == [database]


@pytest.mark.parametrize("database", ["state", "actions"])
def test_records_that_changed_are_dropped_one_by_one(mini: Mini, database: str) -> None:
    undisturbed = verdicts(mini.run("scale"))
    connection = sqlite3.connect(cache_of(mini) / database / "cache.db")
    with connection:
        rows = connection.execute("select rowid, value from Cache").fetchall()
        for rowid, value in rows[::2]:
            data = bytearray(value)
            data[len(data) // 2] ^= 1
            connection.execute("update Cache set value = ? where rowid = ?", (bytes(data), rowid))
    connection.close()
    stored_snapshot.lose(mini)
    if database == "actions":
        mini.command("clean", "scale")
    report = mini.run("scale")
    assert verdicts(report) == undisturbed
    assert report["tasks"]["current"] < report["tasks"]["total"]
    assert {problem["slug"] for problem in report["problems"]} == {"cache-damaged"}
    assert list((cache_of(mini) / "quarantine").glob("record-*"))
    assert mini.run("scale")["executed"] == []


def test_records_that_changed_places_are_not_believed(mini: Mini) -> None:
    """Each is sound, but under the key of another case: its verdict would be that of the other."""
    mini.run("scale")
    mini.edit("scripts/scale.py", "* 3)", "* 4)")
    wrong = mini.run("scale", code=1)
    connection = sqlite3.connect(cache_of(mini) / "actions" / "cache.db")
    with connection:
        rows = connection.execute("select rowid, value from Cache order by rowid").fetchall()
        for (rowid, _), (_, value) in zip(rows, rows[1:] + rows[:1], strict=True):
            connection.execute("update Cache set value = ? where rowid = ?", (value, rowid))
    connection.close()
    mini.command("clean", "scale")
    report = mini.run("scale", code=1)
    assert verdicts(report) == verdicts(wrong)
    assert report["tasks"]["restored"] == 0


def test_a_lost_cache_folder_costs_only_time(mini: Mini) -> None:
    undisturbed = verdicts(mini.run("scale"))
    for part in ("state", "actions", "blobs"):
        path = cache_of(mini) / part
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        report = mini.run("scale")
        assert verdicts(report) == undisturbed, part
        assert not [p for p in report["problems"] if not p["warning"]], part
