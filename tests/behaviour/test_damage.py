"""Whatever happens to the files of the cache, the verdicts stay, and nobody sees a traceback."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mini_workspace import Mini, make_mini
from once import once


def verdicts(report: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(r["op"], r["dtype"], r["verdict"], r["cases"], r["passed"]) for r in report["results"]]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mini, list[tuple[Any, ...]]]:
    """A workspace with an op that fails, after its first run, only to be copied; its verdicts."""
    return once(tmp_path_factory, "damage", check)


def check(folder: Path) -> tuple[Mini, list[tuple[Any, ...]]]:
    mini = make_mini(folder)
    mini.without_causes()
    mini.edit("scripts/total.py", "acc +=", "acc =")
    return mini, verdicts(mini.run(code=1))


@pytest.fixture
def mini(checked: tuple[Mini, list[tuple[Any, ...]]], tmp_path: Path) -> Mini:
    shutil.copytree(checked[0].root, tmp_path / "w", copy_function=shutil.copy2)
    return Mini(tmp_path / "w")


def files(mini: Mini) -> list[Path]:
    return sorted(p for p in (mini.root / ".gpuemu-cache").rglob("*") if p.is_file())


def emptied(mini: Mini) -> None:
    for path in files(mini):
        os.truncate(path, 0)


def halved(mini: Mini) -> None:
    for path in files(mini):
        os.truncate(path, path.stat().st_size // 2)


def flipped(mini: Mini) -> None:
    for path in files(mini):
        data = bytearray(path.read_bytes())
        for place in range(len(data) // 3, len(data), 997):
            data[place] ^= 0x10
        path.chmod(0o600)
        path.write_bytes(data)


def exchanged(mini: Mini) -> None:
    """Each file holds what its neighbour of the same folder held."""
    folders: dict[Path, list[Path]] = {}
    for path in files(mini):
        folders.setdefault(path.parent, []).append(path)
    for paths in folders.values():
        texts = [path.read_bytes() for path in paths]
        for path, text in zip(paths, texts[1:] + texts[:1], strict=True):
            path.chmod(0o600)
            path.write_bytes(text)


def removed(mini: Mini) -> None:
    for path in files(mini)[::2]:
        path.unlink()


def without_databases(mini: Mini) -> None:
    for path in files(mini):
        if path.suffix.startswith((".db", ".sqlite")) or path.name.startswith("cache.db"):
            path.unlink()


def junk(mini: Mini) -> None:
    for path in files(mini):
        path.chmod(0o600)
        path.write_bytes(b"\x00junk{[\xff" * 50)


SELDOM = [pytest.param(one, marks=pytest.mark.ci) for one in (emptied, halved, removed, junk)]


@pytest.mark.parametrize("damage", [flipped, exchanged, without_databases, *SELDOM])
def test_verdicts_outlive_damage(
    checked: tuple[Mini, list[tuple[Any, ...]]], mini: Mini, damage: Callable[[Mini], None]
) -> None:
    _, before = checked
    assert {verdict for _, _, verdict, _, _ in before} == {"passed", "failed"}
    damage(mini)
    assert verdicts(mini.run(code=1)) == before
    again = mini.run(code=1)
    assert verdicts(again) == before
    assert again["executed"] == [], "what was lost is there again"
    mini.edit("scripts/total.py", "acc = widen", "acc += widen")
    assert {r["verdict"] for r in mini.run()["results"]} == {"passed"}


def test_other_commands_say_what_is_the_matter_or_go_on(mini: Mini) -> None:
    junk(mini)
    for words in (("status",), ("list", "--status"), ("explain",), ("failures", "list"),
                  ("report",), ("cache", "stats")):  # fmt: skip
        said = mini.command(*words, code=None)
        assert said.returncode in range(5)
        assert said.stdout or said.stderr


@pytest.mark.ci
@pytest.mark.parametrize(
    ("damaged", "words", "code"),
    [
        ("failures/cache.db", ("failures",), 0),
        ("failures/cache.db", ("failures", "show", "ID"), 2),
        ("baselines/good.baseline", ("baseline", "list"), 0),
        ("baselines/good.baseline", ("baseline", "show", "good"), 2),
        ("baselines/good.baseline", ("diff", "good"), 2),
        ("state/cache.db", ("explain",), 0),
        ("state/cache.db", ("list", "--status"), 0),
        ("state/cache.db", ("report",), None),
    ],
)
def test_who_finds_a_damaged_file_says_so_once(
    mini: Mini, damaged: str, words: tuple[str, ...], code: int | None
) -> None:
    """Else "no failures are recorded" would be all that is told of those that were."""
    mini.command("baseline", "store", "good")
    listed = json.loads(mini.command("failures", "--format", "json").stdout)["failures"]
    for database in mini.root.glob(".gpuemu-cache/*/cache.db"):
        sqlite3.connect(database).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
    path = mini.root / ".gpuemu-cache" / damaged
    path.chmod(0o600)
    path.write_bytes(b"junk{[" * 999)
    given = tuple(listed[0]["id"] if word == "ID" else word for word in words)
    said = [mini.command(*given, code=code) for _ in range(2)]
    told = [[line for line in s.stderr.splitlines() if "cache-damaged" in line] for s in said]
    assert len(told[0]) == 1 and damaged.partition("/cache.db")[0] in told[0][0], said[0]
    assert told[1] == []


def test_a_cache_in_a_place_that_cannot_be_written_is_said(mini: Mini) -> None:
    shutil.rmtree(mini.root / ".gpuemu-cache")
    (mini.root / ".gpuemu-cache").write_text("a file")
    said = mini.command("run", code=None)
    assert said.returncode in (2, 3)
    assert ".gpuemu-cache" in said.stderr


def test_clean_and_a_copy_begin_anew(mini: Mini) -> None:
    mini.command("clean", "--cache")
    report = mini.run(code=1)
    assert report["tasks"]["current"] == 0
    assert json.loads(mini.command("status", "--format", "json").stdout)["tasks"]["current"] == 19
