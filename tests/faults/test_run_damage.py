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

STAGES = {"generate", "op", "reference", "compare", "diff"}


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


def test_changed_manifests_are_set_aside_and_made_again(mini: Mini) -> None:
    undisturbed = verdicts(mini.run("scale"))
    manifests = sorted((cache_of(mini) / "tasks").rglob("*.json"))
    assert {path.parent.name for path in manifests} == STAGES
    sound = [path.read_bytes() for path in manifests]
    for path in manifests:
        flip(path)
    damaged = {path.read_bytes() for path in manifests}
    report = mini.run("scale")
    assert verdicts(report) == undisturbed
    assert [(p["slug"], p["warning"]) for p in report["problems"]] == [("cache-damaged", True)] * 5
    assert {path.read_bytes() for path in (cache_of(mini) / "quarantine").iterdir()} == damaged
    for path, content in zip(manifests, sound, strict=True):
        # The content of diff also says what was before.
        assert path.parent.name == "diff" or path.read_bytes() == content
    again = mini.run("scale")
    assert (again["problems"], again["executed"]) == ([], [])


@pytest.mark.parametrize("op", ["scale", "total"])
@pytest.mark.parametrize("stage", ["generate", "op", "reference", "compare"])
def test_a_manifest_damaged_in_place_is_made_again_after_an_edit(
    mini: Mini, op: str, stage: str
) -> None:
    """Without options, ``run`` looks at most manifests only after the edited op has run."""
    mini.command("run")
    assert mini.command("run").stdout.startswith("up to date")
    path = cache_of(mini) / "tasks" / stage / f"{op}@float32.json"
    sound, damaged = path.read_bytes(), path.read_bytes().replace(b"1", b"2", 1)
    assert sound != damaged
    path.write_bytes(damaged)  # its folder does not show that
    mini.edit("scripts/scale.py", "* 3)", "* 3 + 0)")
    done = mini.command("run")
    assert "cache-damaged" in done.stdout + done.stderr
    assert [p.read_bytes() for p in (cache_of(mini) / "quarantine").iterdir()] == [damaged]
    assert path.read_bytes() == sound
    mini.command("run")
    assert mini.command("run").stdout.startswith("up to date")
    assert mini.run()["problems"] == []


def test_a_failed_task_is_not_run_twice_for_a_damaged_manifest(mini: Mini) -> None:
    mini.root.joinpath("notes").mkdir()
    config = mini.root / "gpuemu.toml"
    config.write_text(config.read_text() + '\n[sandbox]\nwritable = ["notes"]\n')
    begin = "def scale(x):\n"
    mini.edit("scripts/scale.py", begin, f"open('notes/calls', 'a').write('.')\n\n\n{begin}")
    mini.command("run")
    assert mini.command("run").stdout.startswith("up to date")
    calls, path = mini.root / "notes/calls", cache_of(mini) / "tasks/generate/total@float32.json"
    sound = path.read_bytes()

    def broken_by(line: str, damaged: bytes) -> str:
        calls.unlink()
        path.write_bytes(damaged)
        text = (mini.root / "scripts/scale.py").read_text()
        mini.write("scripts/scale.py", text.replace("\n\n\n", f"\n{line}\n\n\n"))
        assert "up to date" not in mini.command("run", code=3).stdout
        assert path.read_bytes() == sound
        return calls.read_text()

    once = broken_by("raise ValueError", sound.replace(b"1", b"2", 1))
    mini.edit("scripts/scale.py", "\nraise ValueError", "")
    mini.command("run")
    assert mini.command("run").stdout.startswith("up to date")
    assert broken_by("raise TypeError", sound) == once


def test_a_damaged_history_makes_no_regression(mini: Mini) -> None:
    """``diff`` compares with its own last manifest, where one digit may be damaged."""
    mini.run("total")
    path = cache_of(mini) / "tasks/diff/total.json"
    text = path.read_text()
    assert text.count('"verdict":"passed"') >= 2
    path.write_text(text.replace('"verdict":"passed"', '"verdict":"failed"'))
    report = mini.run("total")
    assert report["changes"] == []
    assert {p["slug"] for p in report["problems"]} == {"cache-damaged"}


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
